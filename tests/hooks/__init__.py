"""What Helm runs before an upgrade and an uninstallation."""
