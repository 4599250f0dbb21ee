package notify

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Message is what a webhook gets, and a command on its standard input. The help of `notify add` lists the keys: more may
// come, none may go.
type Message struct {
	// ID is the same whenever this event is sent.
	ID      string                 `json:"id"`
	Event   rendezvous.NotifyEvent `json:"event"`
	Cluster string                 `json:"cluster"`
	JobID   launcher.JobID         `json:"job_id,omitempty"`
	Name    string                 `json:"name,omitempty"` // the job's
	User    string                 `json:"user,omitempty"` // whose job
	Host    string                 `json:"host,omitempty"` // of the rank that failed first, or what the event is about
	Rank    *int                   `json:"rank,omitempty"` // that failed first
	State   string                 `json:"state,omitempty"`
	Cause   string                 `json:"cause,omitempty"`
	Time    time.Time              `json:"time"`
	Text    string                 `json:"text"` // all of it in a sentence: what Slack and Mattermost show
	// Content is Text once more, for Discord.
	Content string `json:"content"`
}

// maxText bounds Text in bytes: Discord takes 2000 characters.
const maxText = 1500

// message is a notice for people. Of a job that has ended it is the record that knows how.
func (l *Leader) message(n rendezvous.Notice) Message {
	cluster, _, _ := l.Record.Cluster()
	// The number alone comes again: a restored record counts from an earlier one, and tests have none.
	m := Message{ID: fmt.Sprintf("%.8s-%d-%d", cluster, n.At.UnixNano(), n.ID), Event: n.Event, Cluster: cluster,
		JobID: n.Job, Host: n.Host, State: n.State, Cause: n.Cause, Time: n.At.UTC()}
	what, ended := "job "+string(n.Job), false
	if job, known := l.Record.Job(n.Job); known {
		m.Name, m.User = job.Spec.Name, job.Spec.User
		name, who := string(m.JobID), m.User
		if m.Name != "" {
			name, who = m.Name, name+", "+who
		}
		what = fmt.Sprintf("job %s (%s)", name, who)
		if job.Spec.Service != nil {
			what = fmt.Sprintf("service %s (%s)", name, who)
		}
		if o := job.Outcome; o != nil && n.State == "" {
			ended = true
			m.State, m.Cause = string(o.End), plain.Cut(plain.Line(outcomeText(*o)), rendezvous.MaxNoticeText)
			if o.Root != nil {
				m.Host, m.Rank = o.Root.Host, &o.Root.Rank
			} else if hosts := job.MainHosts(); len(hosts) > 0 {
				m.Host = hosts[0]
			}
		}
	}
	m.Text = "sparkrun: " + sentence(m, what, ended)
	return m
}

func sentence(m Message, what string, ended bool) string {
	because := func(text string) string { return strings.TrimSuffix(text+": "+m.Cause, ": ") }
	switch m.Event {
	case rendezvous.EventJobEnded:
		if m.State == string(rendezvous.Completed) {
			return what + " completed"
		}
		return because(what + " was stopped")
	case rendezvous.EventJobFailed, rendezvous.EventServiceDown:
		switch {
		case !ended && m.Event == rendezvous.EventServiceDown:
			return because(fmt.Sprintf("%s is down (%s)", what, rendezvous.State(m.State).Text()))
		case m.State == string(rendezvous.Rejected):
			return because(what + " could not be started")
		}
		return because(what + " has failed")
	case rendezvous.EventServiceWedged:
		return because(what + " is wedged")
	case rendezvous.EventServiceUp:
		return strings.TrimSuffix(what+" answers at "+m.Cause, " at ")
	case rendezvous.EventNodeLost:
		return because(m.Host + " is lost")
	case rendezvous.EventNodeBack:
		return m.Host + " is back"
	case rendezvous.EventDoctorError:
		return fmt.Sprintf("%s; `sparkrun doctor` says more (%s)", because(cmp.Or(m.Host, "the cluster")), m.State)
	}
	return string(m.Event)
}

// quiet is for texts of users' programs: chats take some words for calls to all their members, or for links.
var quiet = strings.NewReplacer("@", "@\u200b", "<", "‹", ">", "›")

// finished has the texts as chats get them.
func (m Message) finished() Message {
	m.Text = plain.Cut(quiet.Replace(plain.Line(m.Text)), maxText)
	m.Content = m.Text
	return m
}

// environment is the message as variables of a command; what there is nothing of is not set.
func (m Message) environment() (env []string) {
	rank := ""
	if m.Rank != nil {
		rank = strconv.Itoa(*m.Rank)
	}
	for _, v := range [][2]string{{"ID", m.ID}, {"EVENT", string(m.Event)}, {"CLUSTER", m.Cluster}, {"JOB_ID", string(m.JobID)},
		{"NAME", m.Name}, {"USER", m.User}, {"HOST", m.Host}, {"RANK", rank}, {"STATE", m.State}, {"CAUSE", m.Cause},
		{"TIME", m.Time.Format(time.RFC3339)}, {"TEXT", m.Text}} {
		if v[1] != "" {
			env = append(env, "SPARKRUN_"+v[0]+"="+strings.ReplaceAll(v[1], "\x00", ""))
		}
	}
	return env
}
