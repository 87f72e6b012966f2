"""Tests of what is installed: images, chart, lock files."""
