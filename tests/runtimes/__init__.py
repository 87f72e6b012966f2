"""What is particular to the built-in Runtime Servers; what every Runtime must do is in tests/conformance."""
