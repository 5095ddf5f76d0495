"""Check, bench, profile, compile, tune, guard and report: generic over every op of the contract."""
