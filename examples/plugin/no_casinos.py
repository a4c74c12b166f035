#!/usr/bin/env python3
"""A plugin for [plugin] command: refuses events that advertise casinos, and more than ten links.

Hark writes one line for each event to stdin, and waits for one line on stdout. A line to stderr
goes to Hark's log.
"""

import json
import sys


def decide(event):
    """Returns the action, and the text for the client."""
    if "casino" in event["content"].lower():
        return "reject", "blocked: no casinos"
    if event["content"].count("https://") > 10:
        return "shadowReject", ""
    return "accept", ""


for line in sys.stdin:
    request = json.loads(line)
    action, msg = decide(request["event"])
    if action != "accept":
        print(f"{action} for {request['sourceInfo']}", file=sys.stderr, flush=True)
    print(json.dumps({"id": request["event"]["id"], "action": action, "msg": msg}), flush=True)
