"""What an inspection of sub-goals leaves in ``RUN/subgoals``, by name."""

SUBGOALS = "subgoals"
JSON_FILE = "subgoals.json"
ARRAYS_FILE = "subgoals.npz"
ERRORS_FILE = "subgoal_errors.png"
MAZE_FILE = "maze.png"
SCENE_FILE = "subgoals.png"
VIDEO_FILE = "rollout.gif"
