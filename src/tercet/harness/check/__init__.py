"""Is an implementation right? Every case and every production shape against float64."""
