"""Names of the files that an inspection of sub-goals writes into ``RUN/subgoals``."""

SUBGOALS = "subgoals"
JSON_FILE = "subgoals.json"
ARRAYS_FILE = "subgoals.npz"
ERRORS_FILE = "subgoal_errors.png"
MAZE_FILE = "maze.png"
SCENE_FILE = "subgoals.png"
VIDEO_FILE = "rollout.webm"
# Of runs that were inspected before videos were.
OLD_VIDEO_FILE = "rollout.gif"
