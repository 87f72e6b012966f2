"""What Helm runs before it upgrades and before it uninstalls: definitions first, and a farewell that leaves nothing."""
