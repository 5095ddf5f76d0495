"""Tasks of lm-evaluation-harness on packed weights: questions, answers, comparison and gates.

`catalog/` holds one file a task; `run.py` evaluates, `compare.py` sets two runs side by side,
`gate.py` decides. The harness itself (the extra `tasks`) is imported by `harness_task.py` and
`language_model.py` alone.
"""
