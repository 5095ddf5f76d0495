"""Commands about runs of tasks, and the options of all that ask tasks."""
