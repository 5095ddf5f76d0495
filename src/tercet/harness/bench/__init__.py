"""How fast is an implementation, beside what a user would call instead?"""
