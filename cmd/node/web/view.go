package web

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// view is a page: its parts, always the same ones by their ids.
type view struct {
	title string
	under string // the tab that is on
	own   bool   // it is not the same for all
	parts func(*page) []part
}

// failedFor is for how long a job that failed is still among those that run.
const failedFor = time.Hour

var tabs = []tab{
	{Path: "./", Text: "Overview"}, {Path: "fabric", Text: "Fabric"}, {Path: "jobs", Text: "Jobs"},
	{Path: "services", Text: "Services"}, {Path: "models", Text: "Models"}, {Path: "doctor", Text: "Doctor"},
}

// views are all, by path.
var views map[string]view

func init() {
	views = map[string]view{
		"overview": {title: "Overview", parts: func(p *page) []part {
			return []part{p.notice(), p.machines(), p.services(), p.jobs("Jobs", func(j rendezvous.JobStatus) bool {
				if o := j.Outcome; o != nil {
					return o.End == rendezvous.Failed && time.Since(o.At) < failedFor
				}
				return j.Spec.Service == nil
			})}
		}},
		"machine": {title: "Machine", under: "./", own: true, parts: func(p *page) []part {
			return []part{p.notice(), p.machine()}
		}},
		"fabric": {title: "Fabric", parts: func(p *page) []part { return []part{p.notice(), p.fabric(), p.ports()} }},
		"jobs": {title: "Jobs", parts: func(p *page) []part {
			return []part{p.notice(), p.jobs("Jobs", func(rendezvous.JobStatus) bool { return true })}
		}},
		"job": {title: "Job", under: "jobs", own: true, parts: func(p *page) []part { return []part{p.notice(), p.job()} }},
		"logs": {title: "Output", under: "jobs", own: true, parts: func(p *page) []part {
			return append([]part{p.notice()}, p.output()...)
		}},
		"why":      {title: "Why", own: true, parts: func(p *page) []part { return []part{p.notice(), p.why()} }},
		"services": {title: "Services", parts: func(p *page) []part { return []part{p.notice(), p.services()} }},
		"models":   {title: "Models", own: true, parts: func(p *page) []part { return []part{p.notice(), p.models()} }},
		"doctor":   {title: "Doctor", own: true, parts: func(p *page) []part { return []part{p.notice(), p.doctor()} }},
	}
}

// templates are read when a page is first drawn: the agent's start does not wait for them.
var templates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"plain": plain.Line, "text": plain.Text, "bytes": launcher.Size, "rate": rateText, "percent": percent, "bar": bar,
		"level": level, "trail": trail,
		"n0": func(v float64) string { return fmt.Sprintf("%.0f", v) }, "n1": func(v float64) string { return fmt.Sprintf("%.1f", v) },
		"age": func(t time.Time) string { return launcher.Age(time.Since(t)) }, "join": strings.Join,
	}).ParseFS(assets, "assets/*.html"))
})

// draw makes a part by its template.
func draw(id, name string, data any) part {
	var b strings.Builder
	if err := templates().ExecuteTemplate(&b, name, data); err != nil {
		return part{id: id, html: `<p id="` + template.HTMLEscapeString(id) + `">` + template.HTMLEscapeString(err.Error()) + "</p>"}
	}
	return part{id: id, html: b.String()}
}

// list makes a part of items: of a template with a list that is empty, and an item of each of another.
func list[T any](id, name string, data any, item string, of []T, idOf func(T) string) part {
	whole := draw(id, name, data).html
	open, shut, _ := strings.Cut(whole, "</ul>")
	p := part{id: id, open: open, shut: "</ul>" + shut, items: []part{}}
	for _, x := range of {
		p.items = append(p.items, draw(idOf(x), item, x))
	}
	return p
}

// parts draws a view: one that is the same for all once at each moment, however many pages show it.
func (w *Web) parts(name string, p *page) []part {
	v := views[name]
	if v.own {
		return v.parts(p)
	}
	w.drawing.Lock()
	defer w.drawing.Unlock()
	if w.drawn[name].of != p.seen {
		w.drawn[name] = drawn{p.seen, v.parts(p)}
	}
	return w.drawn[name].parts
}

// drawn is a view of a moment.
type drawn struct {
	of    *seen
	parts []part
}

func (p *page) notice() part {
	return draw("notice", "notice", cmp.Or(p.Problem, p.JobsProblem))
}

// machineRow is a machine on a page.
type machineRow struct {
	ID, Host, State, Why, Role, Error string
	Memory                            *usage.Memory
	MemoryUsed                        float64 // 0 to 1
	Busy                              *float64
	BusyOf                            string
	Watts, Celsius                    *float64
	Fabric                            string
	Errors                            bool   // doctor's, by what is known
	Slow                              string // why a GPU is slowed down
	Silent                            string // why it tells nothing of its GPUs
	Hot                               bool
	Since                             time.Time // of its state
	Jobs                              int
	Trail                             []float64
}

func (p *page) machineOf(n wire.NodeStatus) machineRow {
	u := p.Usage[n.ID]
	m := machineRow{ID: "m-" + string(n.ID), Host: n.Host, State: n.State, Why: n.Why, Role: n.Role, Error: u.Error,
		Since: n.Since, Trail: p.Trails[n.ID]}
	if n.Witness {
		m.Role = strings.TrimSpace(m.Role + " witness")
	}
	if u.Memory != nil && u.Memory.Total > 0 {
		m.Memory, m.MemoryUsed = u.Memory, 1-float64(u.Memory.Available)/float64(u.Memory.Total)
	}
	if v, of := busy(u); of != "" {
		m.Busy, m.BusyOf = &v, of
	}
	m.Silent = u.GPUSilent
	for _, g := range u.GPUs {
		if g.Watts != nil {
			m.Watts = new(*g.Watts + or(m.Watts, 0))
		}
		if g.Celsius != nil {
			m.Celsius = new(max(*g.Celsius, or(m.Celsius, 0)))
			m.Hot = m.Hot || *g.Celsius >= doctor.HotGPU
		}
		m.Slow = cmp.Or(m.Slow, doctor.Slowed(g.Name, g.Throttle, g.Busy, g.MHz, g.MaxMHz))
	}
	for _, h := range u.Heat {
		if len(u.GPUs) == 0 {
			m.Celsius = new(max(h.Celsius, or(m.Celsius, 0)))
		}
	}
	tally := p.Known().Tallies[n.Host]
	m.Fabric, m.Errors = checkup.Fabric(n, tally), tally.Errors > 0
	for _, j := range p.Jobs {
		if j.Outcome == nil && slices.ContainsFunc(j.Plan.Nodes, func(at rendezvous.Place) bool { return at.Node == n.ID }) {
			m.Jobs++
		}
	}
	return m
}

func or(v *float64, otherwise float64) float64 {
	if v == nil {
		return otherwise
	}
	return *v
}

func (p *page) machines() part {
	rows := make([]machineRow, len(p.Status.Nodes))
	ready, many := 0, len(rows) > 16
	for i, n := range p.Status.Nodes {
		if rows[i] = p.machineOf(n); n.State == "ready" {
			ready++
		}
		if many { // there is no room
			rows[i].Trail = nil
		}
	}
	return list("machines", "machines", struct {
		Ready, All int
		Many       bool
	}{ready, len(rows), many}, "machine", rows,
		func(m machineRow) string { return m.ID })
}

// rankRow is a rank, or ranks, of a job on a machine.
type rankRow struct {
	Host, Job, JobName string
	Ranks              string
	State, Text        string
	CPU                *float64
	Memory             int64
	GPUMemory          *int64
}

// machine is all that is known of one.
func (p *page) machine() part {
	type data struct {
		*usage.Machine
		Row           machineRow
		Addr, Version string
		Running       []rankRow
		Findings      []envgen.Finding
		Why           asks
	}
	host := p.q.Get("host")
	i := slices.IndexFunc(p.Status.Nodes, func(n wire.NodeStatus) bool { return n.Host == host })
	if i < 0 {
		return draw("machine", "none", struct{ ID, What string }{"machine", "machine"})
	}
	n := p.Status.Nodes[i]
	u := p.Usage[n.ID]
	d := data{Row: p.machineOf(n), Machine: &u.Machine, Version: n.Version, Why: p.asks(host, "Why?")}
	if n.Addr.IsValid() {
		d.Addr = n.Addr.String()
	}
	for _, f := range p.Known().Findings {
		if f.Host == host && f.Severity != envgen.SeverityInfo {
			d.Findings = append(d.Findings, f)
		}
	}
	for _, j := range p.Jobs {
		if j.Outcome != nil {
			continue
		}
		for _, r := range p.ranksOf(j) {
			if r.Host == host {
				d.Running = append(d.Running, r)
			}
		}
	}
	return draw("machine", "machine-page", d)
}

// ranksOf tells of a job's ranks, machine by machine, or rank by rank where machines tell what each uses.
func (p *page) ranksOf(j rendezvous.JobStatus) (rows []rankRow) {
	for _, at := range j.Plan.Nodes {
		state, text := j.State.Text(), ""
		switch since, known := j.AwaySince[at.Host]; {
		case j.Outcome != nil:
			state = string(j.Outcome.End)
		case known:
			state, text = "unknown", at.Host+" has not answered for "+launcher.Age(time.Since(since))
		case slices.Contains(j.Away, at.Host):
			state, text = "unknown", at.Host+" does not answer"
		case slices.Contains(j.Suspended, at.Host):
			state = "suspended"
		}
		used := map[int]usage.Rank{}
		for _, r := range p.Usage[at.Node].Ranks {
			if r.Job == j.Spec.ID && r.Generation == j.Plan.Generation && j.Outcome == nil {
				used[r.Rank] = r
			}
		}
		row := rankRow{Host: at.Host, Job: string(j.Spec.ID), JobName: cmp.Or(j.Spec.Name, string(j.Spec.ID)),
			State: state, Text: text}
		exits := map[int]launcher.Exit{}
		if j.Outcome != nil {
			for _, e := range j.Outcome.Exits {
				exits[e.Rank] = e.Exit
			}
		}
		if len(used)+len(exits) == 0 {
			row.Ranks = fmt.Sprint(at.FirstRank)
			if at.Ranks > 1 {
				row.Ranks = fmt.Sprintf("%d–%d", at.FirstRank, at.FirstRank+at.Ranks-1)
			}
			rows = append(rows, row)
			continue
		}
		for rank := at.FirstRank; rank < at.FirstRank+at.Ranks; rank++ {
			r, has := used[rank]
			row.Ranks, row.State, row.Text = fmt.Sprint(rank), state, text
			if row.CPU, row.Memory, row.GPUMemory = r.CPU, r.Memory, r.GPUMemory; !has && slices.Contains(j.Done, rank) {
				row.State, row.Text = "done", ""
			}
			if e, known := exits[rank]; known {
				switch row.State, row.Text = "ended", plain.Cut(e.String(), 200); {
				case !e.Failed():
					row.State, row.Text = "completed", ""
				case !e.ByUs:
					row.State = "failed"
				}
			} else if j.Outcome != nil {
				row.State, row.Text = "unknown", "how it ended was not told"
			}
			rows = append(rows, row)
		}
	}
	return rows
}

func (p *page) fabric() part {
	return draw("fabric", "fabric", struct{ Picture template.HTML }{p.Known().Picture()})
}

// ports are what the fabric's carry.
func (p *page) ports() part {
	type row struct {
		Host string
		usage.Port
	}
	rows := []row{}
	for _, n := range p.Status.Nodes {
		for _, port := range p.Usage[n.ID].Ports {
			rows = append(rows, row{n.Host, port})
		}
	}
	return draw("ports", "ports", rows)
}

// jobRow is a job on a page.
type jobRow struct {
	ID, Job, Name, User, Workload, State, Text, Cause, Hosts string
	Since                                                    time.Time
	Open, Failed                                             bool
}

func (p *page) jobOf(j rendezvous.JobStatus) jobRow {
	r := jobRow{ID: "j-" + string(j.Spec.ID), Job: string(j.Spec.ID), Name: cmp.Or(j.Spec.Name, string(j.Spec.ID)), User: j.Spec.User,
		Workload: j.Spec.Workload, State: j.State.Text(), Text: j.Waits, Hosts: few(j.MainHosts()),
		Since: j.Planned, Open: j.Outcome == nil}
	if j.Outcome != nil {
		r.Since, r.Cause = j.Outcome.At, j.Outcome.Cause
		r.Failed = j.Outcome.End != rendezvous.Stopped
	} else if j.Started != nil {
		r.Since = *j.Started
	}
	if j.Spec.Service != nil {
		r.State = serviceOf(j).State
	}
	if len(j.FabricLost) > 0 {
		r.Text = "fabric of " + few(j.FabricLost) + " lost"
	}
	if len(j.Away) > 0 {
		r.Text = few(j.Away) + " does not answer"
	}
	return r
}

// few names some hosts and counts the rest.
func few(names []string) string {
	const most = 4
	if len(names) > most {
		return strings.Join(names[:most-1], ", ") + fmt.Sprintf(" and %d more", len(names)-most+1)
	}
	return strings.Join(names, ", ")
}

// jobsMost is how many jobs a page has: of those that are kept the newest.
const jobsMost = 200

func (p *page) jobs(title string, which func(rendezvous.JobStatus) bool) part {
	rows, n := []jobRow{}, 0
	for _, j := range p.Jobs {
		if !which(j) {
			continue
		}
		if n++; n <= jobsMost {
			rows = append(rows, p.jobOf(j))
		}
	}
	return list("jobs", "jobs", struct {
		Title    string
		N, Shown int
	}{title, n, len(rows)}, "job", rows, func(j jobRow) string { return j.ID })
}

// find is the job that the page is about.
func (p *page) find() (rendezvous.JobStatus, bool) {
	id := launcher.JobID(p.q.Get("id"))
	i := slices.IndexFunc(p.Jobs, func(j rendezvous.JobStatus) bool { return j.Spec.ID == id })
	if i < 0 {
		return rendezvous.JobStatus{}, false
	}
	return p.Jobs[i], true
}

// someEvents are shown of a job.
const someEvents = 12

func (p *page) job() part {
	type data struct {
		*rendezvous.JobStatus
		Row     jobRow
		Ranks   []rankRow
		Service *serviceRow
		Root    *launcher.RankExit
		Events  []wire.JobEvent // the newest first
		May     bool
		Why     asks
	}
	j, ok := p.find()
	if !ok {
		return draw("job", "none", struct{ ID, What string }{"job", "job"})
	}
	d := data{JobStatus: &j, Row: p.jobOf(j), Ranks: p.ranksOf(j), May: j.Outcome == nil && p.may(j.Spec.User),
		Why: p.asks(string(j.Spec.ID), "Why?")}
	if j.Outcome != nil {
		d.Root = j.Outcome.Root
	} else {
		d.Events = wire.JobEvents(j, slices.Collect(maps.Values(p.Usage)), time.Now())
		slices.Reverse(d.Events)
		d.Events = d.Events[:min(len(d.Events), someEvents)]
	}
	if j.Spec.Service != nil {
		d.Service = new(serviceOf(j))
	}
	return draw("job", "job-page", d)
}

// serviceRow is a service on a page.
type serviceRow struct {
	ID, Job, Name string
	*wire.ServiceLine
	Hosts string
}

func serviceOf(j rendezvous.JobStatus) serviceRow {
	s := serviceRow{ID: "s-" + string(j.Spec.ID), Job: string(j.Spec.ID), Name: cmp.Or(j.Spec.Name, string(j.Spec.ID)),
		ServiceLine: wire.NewServiceLine(j, time.Now()), Hosts: few(j.MainHosts())}
	s.State = rendezvous.State(s.State).Text()
	return s
}

func (p *page) services() part {
	rows := []serviceRow{}
	for _, j := range p.Jobs {
		if j.Spec.Service != nil && j.Outcome == nil {
			rows = append(rows, serviceOf(j))
		}
	}
	slices.SortStableFunc(rows, func(a, b serviceRow) int { return strings.Compare(a.Name, b.Name) })
	return list("services", "services", struct{ N int }{len(rows)}, "service", rows, func(s serviceRow) string { return s.ID })
}
