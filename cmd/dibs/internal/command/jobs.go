package command

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/store"
)

// jobsText says which jobs of a key run, which of them wait in a worker and on which host, and how
// many are in their queue. It is "" if no job has a place.
func jobsText(e store.Entry) string {
	if !slices.ContainsFunc(e.Places, func(p store.PlaceInfo) bool { return p.Reserved }) {
		return ""
	}
	name := func(o store.Owner) string { return cmp.Or(o.Label, fmt.Sprint("process ", o.PID)) }
	var parts, run, hosts []string
	for _, a := range e.Runs {
		if a.Left > 0 {
			run = append(run, name(a.Owner))
		}
	}
	if len(run) > 0 {
		parts = append(parts, several(run)+verb(len(run), " runs", " run"))
	}
	waiting := map[string][]string{}
	for _, p := range e.Places {
		if p.Reserved {
			continue
		}
		host := p.Owner.Host
		if waiting[host] == nil {
			hosts = append(hosts, host)
		}
		waiting[host] = append(waiting[host], name(p.Owner))
	}
	for _, host := range hosts {
		all := waiting[host]
		parts = append(parts, several(all)+verb(len(all), " waits", " wait")+" in a worker on "+host)
	}
	if e.Reserved > 0 {
		parts = append(parts, fmt.Sprint(e.Reserved, verb(e.Reserved, " is", " are"), " in the queue"))
	}
	return strings.Join(parts, "; ")
}

// verb returns the form of a verb for so many subjects.
func verb(n int, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}
