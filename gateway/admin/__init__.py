"""What operators do about operations, by the console and by the admin API."""
