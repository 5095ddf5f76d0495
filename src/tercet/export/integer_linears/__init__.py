"""integer_linears: what the GPTQ and the AWQ target share, from what fits to the client."""
