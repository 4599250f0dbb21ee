#!/usr/bin/python3
"""A person at a terminal: terminal.py STEP... -- COMMAND. It runs COMMAND in a terminal of
its own (80 by 24) and does the steps in turn:
  see:TEXT   waits until TEXT has been shown, behind what an earlier see found
  type:TEXT  types it; escapes as in Python, \\x03 is Ctrl-C
  ask:TEXT=ANSWER  types it once a second until the answer has been shown
  size:R,C   resizes the window
  hangup     closes the terminal
  end        waits for the command's end
What was shown goes to standard output. It exits with the command's code, 128+n for a signal n,
or 99 where a step took over a minute, which it names."""
import fcntl, os, pty, select, signal, struct, sys, termios, time

at = sys.argv.index("--")
steps, command = sys.argv[1:at], sys.argv[at + 1:]
pid, master = pty.fork()
if pid == 0:
    os.execvp(command[0], command)
shown, seen, status, gone = b"", 0, None, False


def size(rows, cols):
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def look(step, done):
    """Reads what is shown until done."""
    global shown, status, gone
    until = time.monotonic() + 60
    while not done():
        if time.monotonic() > until:
            sys.stdout.buffer.write(shown)
            print("\n!! not within a minute:", step)
            os.kill(pid, signal.SIGKILL)
            sys.exit(99)
        if not gone and select.select([master], [], [], 0.1)[0]:
            try:
                b = os.read(master, 65536)
            except OSError:
                b = b""
            shown += b
            gone = not b
        elif gone:
            time.sleep(0.05)


def ended():
    global status
    if status is None:
        p, s = os.waitpid(pid, os.WNOHANG)
        if p:
            status = s
    return status is not None and (gone or not select.select([master], [], [], 0)[0])


size(24, 80)
for step in steps + ["end"]:
    what, _, text = step.partition(":")
    if what == "see":
        text = text.encode().decode("unicode_escape").encode("latin1")
        look(step, lambda: text in shown[seen:])
        seen = shown.index(text, seen) + len(text)
    elif what == "ask":
        text, _, answer = text.encode().decode("unicode_escape").encode("latin1").rpartition(b"=")
        typed = [0.0]

        def answered():
            if answer in shown[seen:]:
                return True
            if time.monotonic() - typed[0] > 1:
                typed[0] = time.monotonic()
                os.write(master, text)
            return False
        look(step, answered)
        seen = shown.index(answer, seen) + len(answer)
    elif what == "type":
        os.write(master, text.encode().decode("unicode_escape").encode("latin1"))
    elif what == "size":
        size(*map(int, text.split(",")))
    elif what == "hangup":
        os.close(master)
        gone = True
    else:
        look(step, ended)
sys.stdout.buffer.write(shown)
sys.exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
