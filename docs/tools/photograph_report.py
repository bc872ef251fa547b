"""Photograph the top of a real report: python docs/tools/photograph_report.py

Needs `chromium` on the PATH, and Pillow. Run it again when reports look different.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

PICTURE = Path(__file__).parents[1] / "pictures" / "report.png"
COMMAND = "eval -m foundry_1 -m foundry_2 -p random -p gatherer -p planner --episodes 5 --steps 150 --out run"
SIZE = (960, 1080)

with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.executable, "-m", "stretto", *COMMAND.split()], cwd=folder, check=True)
    photograph = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
        f"--window-size={SIZE[0]},{SIZE[1]}",
        "--screenshot=report.png",
        "run/report.html",
    ]
    subprocess.run(photograph, cwd=folder, check=True, capture_output=True)
    with Image.open(Path(folder) / "report.png") as photo:
        photo.convert("RGB").quantize(128).save(PICTURE, optimize=True)
