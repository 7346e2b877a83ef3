"""What inference costs: this library's engines beside everything a user could pick instead, in one run."""
