"""A cluster of one's own: nobody else reaches it, and it ends with the program."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys

PROGRAM = """
import json, os, psutil, stretto

with stretto.cluster("local", cpus=1) as cluster:
    processes = psutil.Process().children(recursive=True)
    listening = [
        one.laddr.ip
        for process in [psutil.Process(), *processes]
        for one in process.net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    ]
    found = {
        "listening": sorted(set(listening)),
        "token": len(os.environ["RAY_AUTH_TOKEN"]),
        "rooms": sum(cluster.rooms().values()),
        "pids": [process.pid for process in processes],
    }
found["token afterwards"] = os.environ.get("RAY_AUTH_TOKEN")
gone, alive = psutil.wait_procs(processes, timeout=60)
found["alive"] = [process.pid for process in alive]
print(json.dumps(found))
"""


def test_it_listens_to_this_machine_alone_behind_a_token_and_ends_with_the_program(tmp_path):
    command = [sys.executable, "-c", PROGRAM]
    # The cluster of the other tests may run already, and its token be here.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["listening"]
    addresses = [ipaddress.ip_address(one) for one in found["listening"]]
    plain = [getattr(one, "ipv4_mapped", None) or one for one in addresses]
    assert all(one.is_loopback for one in plain), found
    assert found["token"] >= 32
    assert found["rooms"] == 1
    assert found["token afterwards"] is None
    assert not found["alive"]
