"""How each model that this project publishes was made: a plan and the trainings after it."""
