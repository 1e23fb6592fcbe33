#!/bin/sh
FOURTAP_SLOWDOWN=0 exec '/tmp/lab/f3' "$@"
