"""CAGE challenge 2 (CybORG): transitions a second, true states and memory beside other designs: python benchmarks/cyborg.py

Put CybORG on PYTHONPATH; it needs gym==0.26.2, networkx, prettytable and paramiko. Each contestant lives in a process of its
own and sleeps while others are measured. Rounds are interleaved: in each, all have a turn. Ratios are medians over rounds,
each within one round. "same" says whether all environments had exactly the trajectories that each has alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

from cyborg_designs import DESIGNS, DIGEST, MEMORY, PLAY, TRUE_STATES
from hosts import Host
from machine import describe

SCRIPT = str(Path(__file__).with_name("cyborg_designs.py"))


def measure(count: int, rounds: int, seconds: float, names: list[str]) -> None:
    hosts: dict[str, Host] = {}
    took: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    true: dict[str, list[float]] = {name: [] for name in names}
    try:
        for name in names:  # one after the other, so that each looks at a machine that is free
            hosts[name] = Host(name, str(count), script=SCRIPT)
            if choice := hosts[name].build(240)["choice"]:
                print(f"{name}: {choice}", file=sys.stderr)
        digests = {name: host.run(DIGEST, 0, timeout_seconds=240)["digest"] for name, host in hosts.items()}
        for number in range(rounds):
            for name, host in hosts.items():
                took[name].append(host.run(PLAY, seconds, timeout_seconds=240))
                if number < 3:
                    true[name].append(host.run(TRUE_STATES, 0, timeout_seconds=240)["seconds"])
            print(f"{count} environments, round {number + 1} of {rounds}", file=sys.stderr)
        used = {name: host.run(MEMORY, 0, timeout_seconds=240)["bytes"] for name, host in hosts.items()}
    finally:
        for host in hosts.values():
            host.close()
    print(f"\n{count} environments")
    print(
        f"{'design':16}{'a second':>10}{'ours over it':>14}{'by CPU':>8}{'true/step':>11}{'MB':>8}{'ours/its':>10}  same"
    )
    ours = took[names[0]]
    for name in names:
        rate = median(count / one["seconds"] for one in took[name])
        ratio = median(one["seconds"] / own["seconds"] for one, own in zip(took[name], ours, strict=True))
        cpu = median(one["cpu"] / own["cpu"] for one, own in zip(took[name], ours, strict=True))
        share = median(true[name]) / median(one["seconds"] for one in took[name])
        print(
            f"{name:16}{rate:10.0f}{ratio:14.2f}{cpu:8.2f}{share:11.2f}{used[name] / 1e6:8.0f}"
            f"{used[names[0]] / used[name]:10.2f}  {digests[name] == digests[names[0]]}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, nargs="+", default=[20, 50, 200])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--only", nargs="+", choices=DESIGNS, default=list(DESIGNS))
    options = parser.parse_args()
    print(describe("stretto", "gymnasium", "gym", "numpy"))
    for count in options.environments:
        measure(count, options.rounds, options.seconds, ["stretto", *(one for one in options.only if one != "stretto")])


if __name__ == "__main__":
    main()
