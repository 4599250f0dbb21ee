package witness

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const second = int64(time.Second)

var (
	one = Key{"jobjobjobj", 1}
	two = Key{"jobjobjobj", 2}
)

// at is a record of a rank of an attempt of two on two hosts, some seconds in.
func at(sec float64, k Key, rank int32, kind Kind) Record {
	ns := int64(sec * float64(second))
	return Record{
		Kind: kind, Job: k.Job, Generation: k.Generation, Rank: rank, World: 2, Nodes: 2, PID: 100*int32(k.Generation) + rank,
		Host: []string{"spark1", "spark2"}[rank], Boot: ns, Mono: ns, Real: ns,
	}
}

func by(pid int32, r Record) Record {
	r.PID = pid
	return r
}

func on(host string, r Record) Record {
	r.Host = host
	return r
}

// line is the nth line that a rank wrote down.
func line(sec float64, k Key, rank int32, n uint64) Record {
	r := at(sec, k, rank, Line)
	r.Number, r.Hash = n, Hash(Text(k, rank, n))
	return r
}

// told is what a host was told of the job's state; asking took a tenth of a second.
func told(sec float64, host string, generation uint64, state string, code int32) Record {
	ns := int64(sec * float64(second))
	return Record{Kind: State, Job: one.Job, Generation: generation, Host: host, State: state, Code: code, Boot: ns, Until: ns + second/10}
}

// typed is what a user asked about the job, and was told; to is 0 where there was no answer.
func typed(from, to float64, launch bool, told Told) Ask {
	return Ask{"train", launch, told, "spark1", int64(from * float64(second)), int64(to * float64(second))}
}

// listed is an answer of ps, with the job in that state; an empty one is of others.
func listed(sec float64, host, state string) []Record {
	r := told(sec, host, 1, state, 0)
	answer := r
	answer.Kind, answer.Number = Answer, 3
	if r.Name = "train"; state == "" {
		return []Record{answer}
	}
	return []Record{r, answer}
}

func born(sec float64, k Key, host string) Birth { return Birth{k, host, int64(sec * float64(second))} }

// prepared is a first second in which both hosts were prepared for both tries.
var prepared = []Birth{born(0.1, one, "spark1"), born(0.9, one, "spark2"), born(0.1, two, "spark1"), born(0.9, two, "spark2")}

// ran is an attempt that started and lives until then.
func ran(k Key, from, to float64) []Record {
	return []Record{at(from, k, 0, Start), at(from+0.1, k, 1, Start), at(to, k, 0, Beat), at(to, k, 1, Beat)}
}

// exit is that of a rank of one.
func exit(sec float64, rank, code int32) Record {
	r := at(sec, one, rank, Exit)
	r.Code = code
	return r
}

func spares(r Record) Record {
	r.State = Spares
	return r
}

// doubt is what was told with hosts of which it is not known.
func doubt(hosts string, r Record) Record {
	r.Doubts = hosts
	return r
}

func read(k Key, rank int32, pieces ...Piece) Log {
	return Log{Key: k, Rank: rank, Host: []string{"spark1", "spark2"}[rank], Pieces: pieces}
}

func text(n uint64) string { return Text(one, 0, n) }

func TestCheck(t *testing.T) {
	cut := func(host string, from, to float64) Fault {
		return Fault{host, Network, int64(from * float64(second)), int64(to * float64(second))}
	}
	lines := append(ran(one, 1, 9), line(2, one, 0, 1), line(3, one, 0, 2), line(4, one, 0, 3))
	exited := append(lines[:len(lines):len(lines)], at(5, one, 0, Exit))
	first, second3 := Piece{0, text(1)}, Piece{int64(len(text(1) + text(2))), text(3)}
	whole := []Piece{first, {int64(len(text(1))), text(2)}, second3}

	tests := map[string]struct {
		h    History
		want string // the broken properties
	}{
		"nothing":             {History{}, ""},
		"an attempt":          {History{Records: ran(one, 1, 9)}, ""},
		"one that ended":      {History{Records: append(ran(one, 1, 9), exit(9, 0, 0), exit(9, 1, 0), told(9.5, "spark1", 1, "completed", 0))}, ""},
		"one after the other": {History{Records: append(ran(one, 1, 9), ran(two, 9.5, 20)...)}, ""},

		"accepted, seen, ended": {History{Asks: []Ask{typed(1, 2, true, Accepted), typed(4, 5, false, Ended), typed(6, 7, false, Ended)},
			Records: slices.Concat(listed(0.5, "spark2", ""), listed(3, "spark2", "running"), listed(6, "spark2", "stopped"))}, ""},
		"seen before it is accepted":      {History{Asks: []Ask{typed(1, 4, true, Accepted)}, Records: slices.Concat(listed(2, "spark2", ""), listed(3, "spark2", "starting"))}, ""},
		"no answer, and none launched":    {History{Asks: []Ask{typed(1, 0, true, Accepted)}, Records: listed(9, "spark2", "")}, ""},
		"no answer, and launched late":    {History{Asks: []Ask{typed(1, 0, true, Accepted)}, Records: slices.Concat(listed(8, "spark2", ""), listed(9, "spark2", "running"))}, ""},
		"accepted and not there":          {History{Asks: []Ask{typed(1, 2, true, Accepted)}, Records: listed(3, "spark2", "")}, "P1"},
		"accepted, there and lost":        {History{Asks: []Ask{typed(1, 2, true, Accepted)}, Records: slices.Concat(listed(3, "spark2", "running"), listed(9, "spark1", ""))}, "P1"},
		"no answer, there and lost":       {History{Asks: []Ask{typed(1, 0, true, Accepted)}, Records: slices.Concat(listed(3, "spark2", "running"), listed(9, "spark1", ""))}, "P1"},
		"lost for a moment, among others": {History{Asks: []Ask{typed(1, 2, true, Accepted)}, Records: slices.Concat(listed(3, "spark2", "running"), listed(4, "spark2", "running"), listed(5, "spark2", ""), listed(6, "spark2", "running"), listed(7, "spark2", "running"))}, "P1"},
		"accepted, and a stop is refused": {History{Asks: []Ask{typed(1, 2, true, Accepted), typed(3, 4, false, NoSuch)}}, "P1"},
		"stopped, and it runs":            {History{Asks: []Ask{typed(1, 2, true, Accepted), typed(3, 4, false, Ended)}, Records: listed(5, "spark2", "planned")}, "P1"},
		"there before it was launched":    {History{Asks: []Ask{typed(1, 2, true, Accepted)}, Records: listed(0.5, "spark2", "running")}, "P1"},
		"forgotten, as old jobs are":      {History{Asks: []Ask{typed(1, 2, true, Accepted)}, Records: []Record{{Kind: Answer, Host: "spark1", Boot: 5 * second, Until: 6 * second, Number: Remembers}}}, ""},

		"exec'd twice":                   {History{Records: append(ran(one, 1, 9), by(7, at(3, one, 1, Start)))}, "P2"},
		"exec'd twice, by another host":  {History{Records: append(ran(one, 1, 9), on("spark1", at(3, one, 1, Start)))}, "P2"},
		"exec'd twice, at the same time": {History{Records: append(ran(one, 1, 9), by(7, at(1.1, one, 1, Start)))}, "P2"},

		"two generations at once": {History{Records: append(ran(one, 1, 9), ran(two, 8.9, 20)...)}, "P3"},
		"the older one comes back": {History{Records: append(append(ran(one, 1, 9), ran(two, 9.5, 20)...),
			by(300, at(15, one, 1, Beat)))}, "P3"},
		"what it forked lives": {History{Records: append(append(ran(one, 1, 9), ran(two, 9.5, 20)...), by(300, at(9.6, one, 1, Beat)))}, "P3"},
		"another job":          {History{Records: append(ran(one, 1, 9), ran(Key{"other", 2}, 2, 3)...), Births: append(prepared, born(0, Key{"other", 2}, "spark1"), born(0, Key{"other", 2}, "spark2"))}, ""},

		"forward": {History{Records: []Record{told(1, "spark1", 1, "starting", -1), told(2, "spark2", 1, "running", -1), told(3, "spark3", 1, "ending", -1),
			told(4, "spark1", 1, "waiting", -1), told(5, "spark1", 1, "ending", -1), told(6, "spark1", 2, "starting", -1), told(7, "spark1", 2, "failed", 3), told(8, "spark2", 2, "failed", 3)}}, ""},
		"a stage and the next": {History{Records: []Record{told(1, "spark1", 1, "running", -1), told(2, "spark1", 2, "starting", -1)}}, ""},
		"a node that cannot know": {History{Records: []Record{told(1, "spark1", 1, "running", -1), told(2, "spark2", 1, "planned", -1),
			told(3, "spark2", 1, "running", -1)}}, ""},
		"asked at the same time":    {History{Records: []Record{told(1, "spark1", 1, "running", -1), told(1.05, "spark2", 1, "starting", -1)}}, ""},
		"back to its start":         {History{Records: []Record{told(1, "spark1", 1, "running", -1), told(2, "spark2", 1, "starting", -1)}}, "P4"},
		"back to running":           {History{Records: []Record{told(1, "spark1", 1, "ending", -1), told(2, "spark1", 1, "running", -1)}}, "P4"},
		"back to a try before":      {History{Records: []Record{told(1, "spark1", 2, "starting", -1), told(2, "spark1", 1, "running", -1)}}, "P4"},
		"up from the dead":          {History{Records: []Record{told(1, "spark1", 1, "failed", 3), told(2, "spark1", 2, "running", -1)}}, "P4"},
		"another end":               {History{Records: []Record{told(1, "spark1", 1, "failed", 3), told(2, "spark2", 1, "stopped", 143)}}, "P4"},
		"another code":              {History{Records: []Record{told(1, "spark1", 1, "failed", 3), told(2, "spark2", 1, "failed", 4)}}, "P4"},
		"an end behind what is new": {History{Records: []Record{told(1, "spark1", 1, "failed", 3), told(1.05, "spark2", 1, "running", -1), told(3, "spark2", 1, "failed", 3)}}, ""},

		"outlives its end":         {History{Records: append(ran(one, 1, 20), told(9, "spark1", 1, "failed", 3))}, "P6"},
		"a little":                 {History{Records: append(ran(one, 1, 9.2), told(9, "spark1", 1, "failed", 3))}, "P6"},
		"as it is told":            {History{Records: append(ran(one, 1, 9.05), told(9, "spark1", 1, "failed", 3))}, ""},
		"outlives a stop":          {History{Records: ran(one, 1, 20), Overs: []Over{{one.Job, 9 * second}}}, "P6"},
		"another's stop":           {History{Records: ran(one, 1, 20), Overs: []Over{{"other", 9 * second}}}, ""},
		"a stray outlives it":      {History{Records: append(ran(one, 1, 9), by(300, at(20, one, 0, Beat)), told(9, "spark1", 1, "failed", 3))}, "P6"},
		"lives as the next begins": {History{Records: append(ran(one, 1, 20), told(9, "spark1", 2, "starting", -1))}, "P6"},
		"out of reach, not told":   {History{Records: append(ran(one, 1, 20), told(9, "spark1", 1, "failed", 3)), Faults: []Fault{cut("spark2", 8, 18)}}, "P6"},
		"out of reach":             {History{Records: append(ran(one, 1, 20), doubt("spark1 spark2", told(9, "spark1", 1, "failed", 3))), Faults: []Fault{cut("spark2", 8, 18)}}, ""},
		"doubt of another":         {History{Records: append(ran(one, 1, 20), doubt("spark1", told(9, "spark1", 1, "failed", 3))), Faults: []Fault{cut("spark2", 8, 18)}}, "P6"},
		"out of reach for ever":    {History{Records: append(ran(one, 1, 2000), doubt("spark1 spark2", told(9, "spark1", 1, "failed", 3))), Faults: []Fault{cut("spark2", 8, 0)}}, ""},
		"in reach again":           {History{Records: append(ran(one, 1, 30), doubt("spark1 spark2", told(9, "spark1", 1, "failed", 3))), Faults: []Fault{cut("spark2", 8, 18)}}, "P6"},
		"out of reach before that": {History{Records: append(ran(one, 1, 20), doubt("spark1 spark2", told(9, "spark1", 1, "failed", 3))), Faults: []Fault{cut("spark2", 2, 4)}}, "P6"},

		"a rank fails":                   {History{Records: append(ran(one, 1, 9), exit(8, 1, 3))}, ""},
		"a rank fails, and one goes on":  {History{Records: append(ran(one, 1, 20), exit(8, 1, 3))}, "P10"},
		"... which it may":               {History{Records: append(ran(one, 1, 20), spares(exit(8, 1, 3)))}, ""},
		"... for it ended well":          {History{Records: append(ran(one, 1, 20), exit(8, 1, 0))}, ""},
		"... as it cannot be reached":    {History{Records: append(ran(one, 1, 20), exit(8, 1, 3)), Faults: []Fault{cut("spark1", 8, 18)}}, ""},
		"all exit":                       {History{Records: append(ran(one, 1, 8), exit(8, 0, 0), exit(8, 1, 0), told(10, "spark1", 1, "running", -1))}, ""},
		"all exit, and it is not noted":  {History{Records: append(ran(one, 1, 8), exit(8, 0, 0), exit(8, 1, 0), told(12, "spark1", 1, "running", -1))}, "P10"},
		"all exit, and it ends for ever": {History{Records: append(ran(one, 1, 8), exit(8, 0, 0), exit(8, 1, 3), told(12, "spark1", 1, "ending", -1))}, "P10"},
		"it ends for long":               {History{Records: []Record{told(1, "spark1", 1, "ending", -1), told(7, "spark1", 1, "ending", -1)}}, ""},
		"it ends for ever":               {History{Records: []Record{told(1, "spark1", 1, "ending", -1), told(8, "spark1", 1, "ending", -1)}}, "P10"},
		"one exits, and it goes on":      {History{Records: append(ran(one, 1, 20), exit(8, 0, 0), told(12, "spark1", 1, "running", -1))}, ""},

		"completed":                           {History{Records: append(ran(one, 1, 8), exit(8, 0, 0), exit(8, 1, 0), told(9, "spark1", 1, "completed", 0))}, ""},
		"completed, and a rank failed":        {History{Records: append(ran(one, 1, 8), exit(8, 0, 0), exit(8, 1, 3), told(9, "spark1", 1, "completed", 0))}, "P11"},
		"completed, and a rank never started": {History{Records: []Record{at(1, one, 0, Start), exit(8, 0, 0), told(9, "spark1", 1, "completed", 0)}}, "P11"},
		"completed, with a code":              {History{Records: append(ran(one, 1, 8), exit(8, 0, 0), exit(8, 1, 0), told(9, "spark1", 1, "completed", 3))}, "P11"},
		"failed as a rank did":                {History{Records: append(ran(one, 1, 8), exit(8, 0, 143), exit(8, 1, 3), told(9, "spark1", 1, "failed", 3))}, ""},
		"failed with another code":            {History{Records: append(ran(one, 1, 8), exit(8, 0, 143), exit(8, 1, 3), told(9, "spark1", 1, "failed", 7))}, "P11"},
		"failed, and all went well":           {History{Records: append(ran(one, 1, 8), exit(8, 0, 0), exit(8, 1, 0), told(9, "spark1", 1, "failed", 1))}, "P11"},
		"failed for a machine":                {History{Records: append(ran(one, 1, 8), exit(8, 0, 0), exit(8, 1, 0), told(9, "spark1", 1, "failed", 125))}, ""},
		"failed as one that was killed":       {History{Records: append(ran(one, 1, 8), exit(8, 0, 143), told(9, "spark1", 1, "failed", 137))}, ""},

		"read whole":             {History{Records: lines, Logs: []Log{read(one, 0, whole...)}}, ""},
		"read so far":            {History{Records: lines, Logs: []Log{read(one, 0, first)}}, ""},
		"nothing read":           {History{Records: lines, Logs: []Log{read(one, 0)}}, ""},
		"half a line":            {History{Records: lines, Logs: []Log{read(one, 0, first, Piece{int64(len(text(1))), text(2)[:5]})}}, ""},
		"the beginning missing":  {History{Records: lines, Logs: []Log{read(one, 0, second3)}}, "P7"},
		"a line missing":         {History{Records: lines, Logs: []Log{read(one, 0, first, second3)}}, "P7"},
		"a line missing, told":   {History{Records: lines, Logs: []Log{{Key: one, Pieces: []Piece{first, second3}, Notes: 1}}}, ""},
		"a line closed up":       {History{Records: lines, Logs: []Log{read(one, 0, first, Piece{int64(len(text(1))), text(3)})}}, "P7"},
		"a line twice":           {History{Records: lines, Logs: []Log{read(one, 0, first, first)}}, "P7"},
		"a byte changed":         {History{Records: lines, Logs: []Log{read(one, 0, Piece{0, "x" + text(1)[1:]})}}, "P7"},
		"more than was written":  {History{Records: lines, Logs: []Log{read(one, 0, append(whole[:3:3], Piece{int64(len(text(1) + text(2) + text(3))), text(4)})...)}}, "P7"},
		"another rank's":         {History{Records: lines, Logs: []Log{read(one, 0, Piece{0, Text(one, 1, 1)})}}, "P7"},
		"the end, after an exit": {History{Records: exited, Logs: []Log{read(one, 0, whole...)}}, ""},
		"the end missing":        {History{Records: exited, Logs: []Log{read(one, 0, whole[:2]...)}}, "P7"},
		"the end missing, told":  {History{Records: exited, Logs: []Log{{Key: one, Host: "spark1", Pieces: whole[:2], Notes: 1}}}, ""},
		"the end lost with the power": {History{Records: exited, Logs: []Log{read(one, 0, whole[:2]...)},
			Faults: []Fault{{"spark1", Power, 6 * second, 7 * second}}}, ""},
		"output of nobody": {History{Logs: []Log{read(one, 0, first)}}, "P7"},

		"started before a node was prepared":    {History{Records: ran(one, 1, 9), Births: []Birth{born(0.1, one, "spark1"), born(1.2, one, "spark2")}}, "P9"},
		"started without a node":                {History{Records: ran(one, 1, 9), Births: []Birth{born(0.1, one, "spark1"), born(0.1, two, "spark2")}}, "P9"},
		"half an attempt, for a while":          {History{Records: []Record{at(1, one, 0, Start), at(12, one, 0, Beat)}}, ""},
		"half an attempt, too long":             {History{Records: []Record{at(1, one, 0, Start), at(20, one, 0, Beat)}}, "P9"},
		"half an attempt, too long, then whole": {History{Records: []Record{at(1, one, 0, Start), at(20, one, 0, Beat), at(19, one, 1, Start)}}, "P9"},
		"half an attempt, out of reach":         {History{Records: []Record{at(1, one, 0, Start), at(20, one, 0, Beat)}, Faults: []Fault{cut("spark2", 1, 19)}}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.h.Births == nil {
				tt.h.Births = prepared
			}
			tt.h.Bounds = Bounds{Kill: 3 * time.Second, Tell: 3 * time.Second, StartTimeout: 10 * time.Second, Settle: 2 * time.Second}
			var got []string
			found := Check(tt.h)
			for _, v := range found {
				if len(got) == 0 || got[len(got)-1] != v.Property {
					got = append(got, v.Property)
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("want %q, got %q: %v", tt.want, got, found)
			}
		})
	}
}
