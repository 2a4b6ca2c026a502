"""Rules of judging: each looks at one case and yields its reasons, or none. Pure.

A rule decides nothing alone: `e2e.judge` lists all of them, orders their reasons and reads the outcome off
the first. A new rule is a function here and its name there.
"""
