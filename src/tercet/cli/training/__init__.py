"""Commands that train what they write."""
