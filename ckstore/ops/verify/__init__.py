"""Read stored bytes again, report damage and repair it."""
