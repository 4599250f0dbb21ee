#!/bin/sh
# Stands in for `ray` where a stage of a job has to fail, or to wait, at a certain place: FAIL says
# where. What is tested with it is sparkrun; TestRay has the real one.
if [ "$1" = status ]; then
	for node in 1 2 3; do
		case $FAIL$node in
		waits[23] | worker3) ;;
		*) echo " 1 node_0123456789abcdef012$node" ;;
		esac
	done
	exit
fi
for word; do
	case $word in
	--head) head=yes ;;
	--port=*) port=${word#--port=} ;;
	esac
done
if [ "$head" ]; then
	[ "$FAIL" != head ] || { echo "OSError: the GCS has no room" >&2; exit 3; }
	echo "Ray runtime started."
	exec python3 -c "import http.server as h, os; p=int('$port'); h.HTTPServer(('127.0.0.1', p), h.SimpleHTTPRequestHandler).serve_forever()"
fi
[ "$FAIL" != worker ] || [ "$SPARKRUN_HOST" != spark3 ] || { echo "RuntimeError: the raylet has no room" >&2; exit 4; }
echo "Ray runtime started."
exec sleep 1000
