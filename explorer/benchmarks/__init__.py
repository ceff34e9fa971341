"""Measurements inside the one decode loop: what runs, runs as it does for a user, and only clocks are added."""
