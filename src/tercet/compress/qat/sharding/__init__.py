"""Training on several devices: FSDP2 gathers packed codes."""
