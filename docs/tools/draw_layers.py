"""Draw the layers that `make check` enforces: python docs/tools/draw_layers.py

The picture is made from the contract in pyproject.toml, so that it cannot tell anything else.
"""

import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "pictures" / "layers.svg"
CAPTIONS = {
    "cli": "what you call",
    "sweeps": "which settings are best",
    "training": "agents that learn",
    "evaluation": "play, and keep what happened",
    "rollout": "the loop of an episode; a run's folder",
    "envs": "worlds, policies, experience",
    "missions": "which world, and where it runs",
    "workers": "processes; worlds as they come",
    "measure": "how long things take",
    "budget": "cores, random streams, traces",
    "settings": "files, code by name, settings",
    "outputs": "what worlds return; arrays in files",
    "core": "contracts, errors, spaces",
}
RULE = "An upper row may import a lower one. Parts of one row never import each other."
WIDTH, HEIGHT, LEFT, TOP, CHARACTER = 860, 34, 40, 28, 7.3
STYLE = """text { font: 13px sans-serif; fill: #222 } .box { fill: #3b7dd822; stroke: #3b7dd8 } .caption { fill: #666 }
.arrow { stroke: #d9822b; stroke-width: 2; fill: none } .tip { fill: #d9822b } .row { fill: #88888812 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .caption { fill: #aaa } }"""


def layers():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = [[name.strip(" ()") for name in row.split("|")] for row in contracts[0]["layers"]]
    return [row for row in rows if row != ["__main__"]]


def drawn(rows):
    bottom = TOP + HEIGHT * len(rows)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 6}" width="{WIDTH}" height="{bottom + 6}">'
    yield f"<style>\n{STYLE}\n</style>"
    yield f'<text class="caption" x="{LEFT}" y="16">{RULE}</text>'
    yield f'<path class="arrow" d="M16 {TOP + 6} V{bottom - 14}"/><path class="tip" d="M10 {bottom - 16} h12 l-6 12 z"/>'
    for number, row in enumerate(rows):
        y = TOP + HEIGHT * number
        yield f'<rect class="row" x="{LEFT - 6}" y="{y}" width="{WIDTH - LEFT}" height="{HEIGHT - 4}" rx="4"/>'
        x = float(LEFT)
        for name in row:
            width = len(name) * CHARACTER + 14
            yield f'<rect class="box" x="{x:.0f}" y="{y + 4}" width="{width:.0f}" height="{HEIGHT - 12}" rx="4"/>'
            yield f'<text x="{x + width / 2:.0f}" y="{y + 20}" text-anchor="middle">{escape(name)}</text>'
            x += width + 8
        caption = next((CAPTIONS[name] for name in row if name in CAPTIONS), "")
        yield f'<text class="caption" x="{WIDTH - 14}" y="{y + 20}" text-anchor="end">{escape(caption)}</text>'
    yield "</svg>"


def picture():
    return "\n".join(drawn(layers())) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture())
