"""What several tests need; no test is in here."""
