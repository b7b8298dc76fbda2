package fault_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/proof/fault"
)

// idlers are workers that do nothing: processes that do not use the store.
type idlers struct{ pid int }

func (i *idlers) Len() int               { return 1 }
func (i *idlers) PID(int) int            { return i.pid }
func (i *idlers) Kill(int) (bool, error) { return false, nil }
func (i *idlers) Lost(int) int           { return 0 }
func (i *idlers) Failed(string) int      { return 0 }
func (i *idlers) Stop(ctx context.Context, _ int, d time.Duration) (bool, error) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return true, nil
}

// sham is a server, a replica, a clock and a manager to which nothing can be done.
type sham struct{ addr, etcd string }

func (*sham) Kill()                          {}
func (*sham) Restart()                       {}
func (*sham) Pause()                         {}
func (*sham) Continue()                      {}
func (*sham) Lag() error                     { return nil }
func (*sham) Rebuild() (int64, error)        { return 0, nil }
func (*sham) Step(time.Duration) error       { return nil }
func (*sham) KillServer(bool) error          { return nil }
func (*sham) StopManager() error             { return nil }
func (*sham) CutManager(time.Duration) error { return nil }
func (*sham) Switchover() error              { return nil }
func (*sham) Promoted(int64) (int64, error)  { return 1, nil }
func (*sham) Heal() error                    { return nil }
func (s *sham) Etcd() (string, fault.Server) { return s.etcd, s }
func (s *sham) Promote(bool) (string, error) { return s.addr, nil }

func TestSelect(t *testing.T) {
	workers := &idlers{1}
	file := &fault.Target{URL: "sqlite:/nowhere/dibs.db", Workers: workers}
	theirs := &fault.Target{URL: "redis://127.0.0.1:1", Workers: workers, Wires: make([]*wire.Wire, 1)}
	ours := &fault.Target{URL: theirs.URL, Workers: workers, Wires: theirs.Wires, Server: &sham{}}
	for _, test := range []struct {
		target *fault.Target
		list   string
		want   string // names; or the error's beginning
		absent string
	}{
		{file, "none", "", ""},
		{file, "worker,-kill", "stop", ""},
		{file, "kill, stop", "kill stop", ""},
		{file, "cut", "", "cut"},
		{file, "oops", "there is no fault \"oops\"", ""},
		{file, "kill,", "there is no fault \"\"", ""},
		{theirs, "data", "", "script-flush flushall failover split"},
		{theirs, "flushall", "flushall", ""},
		{ours, "data", "script-flush flushall", "failover split"},
		{theirs, "server", "kill-connections", "server-kill server-stop server-clock"},
		{theirs, "-worker,-data,-server,-manager,-file", "delay cut partition lost-requests lost-replies lost-reply", ""},
	} {
		var got, absent []string
		apply, not, err := fault.Select(test.target, test.list)
		for _, f := range apply {
			got = append(got, f.Name)
		}
		for _, a := range not {
			absent = append(absent, a.Name)
			if a.Why == "" {
				t.Errorf("%q: %s is absent without a reason", test.list, a.Name)
			}
		}
		if err != nil {
			got = []string{err.Error()}
		}
		if s := strings.Join(got, " "); s != test.want && (err == nil || !strings.HasPrefix(s, test.want)) {
			t.Errorf("%q selects %q; want %q", test.list, s, test.want)
		}
		if s := strings.Join(absent, " "); s != test.absent {
			t.Errorf("of %q, there are not %q; want %q", test.list, s, test.absent)
		}
	}
	for _, clockless := range []bool{false, true} {
		ours.Clock, ours.Clockless = &sham{}, clockless
		apply, _, err := fault.Select(ours, "server-clock")
		testkit.Must(t, err)
		if apply[0].Forgets == clockless {
			t.Errorf("a store that goes by no clock (%v) forgets what it knows when a clock steps: %v", clockless, apply[0].Forgets)
		}
	}
	for _, durable := range []bool{false, true} {
		ours.Durable = durable
		apply, _, err := fault.Select(ours, "server-kill,flushall")
		testkit.Must(t, err)
		if apply[0].Forgets == durable || !apply[1].Forgets {
			t.Errorf("a server that keeps what it knows (%v) forgets it when it is killed: %v", durable, apply[0].Forgets)
		}
	}
}

func TestThrough(t *testing.T) {
	for _, test := range []struct {
		url  string
		want string // the URL, with WIRE for the wire's address; or a part of the error
	}{
		{"redis://127.0.0.1:7000/0", "redis://WIRE/0"},
		{"redis://localhost", "redis://WIRE"},
		{"redis://:s3cr@t/x@localhost:1/2?prefix=a@b", "redis://:s3cr@t/x@WIRE/2?prefix=a@b"},
		{"redis://:p%2Fq@localhost:1/2?prefix=p", "redis://:p%2Fq@WIRE/2?prefix=p"},
		{"postgres://u:p@h@127.0.0.1/db?sslmode=disable", "postgres://u:p@h@WIRE/db?sslmode=disable"},
		{"postgresql://[::1]:5433/db", "postgresql://WIRE/db"},
		{"mysql://root@127.0.0.1/app?migrate=true", "mysql://root@WIRE/app?migrate=true"},
		{"mariadb://root@127.0.0.1:3307/app", "mariadb://root@WIRE/app"},
		{"http://127.0.0.1:7331", "http://WIRE"},
		{"http://:t%40k@localhost", "http://:t%40k@WIRE"},
		{"s3://bucket/a?endpoint=http://127.0.0.1:7070&tick=1s", "s3://bucket/a?endpoint=http://WIRE&tick=1s"},
		{"s3://bucket?endpoint=http://localhost", "s3://bucket?endpoint=http://WIRE"},
		{"s3://bucket?endpoint=https://localhost", "no host"},
		{"s3://bucket", "no host"},
		{"http://a,b", "several servers"},
		{"https://dibs.internal", "by TLS"},
		{"http+unix:/run/dibs/dibs.sock", "by a socket"},
		{"rediss://127.0.0.1", "by TLS"},
		{"redis+sentinel://a,b/m", "find their servers by themselves"},
		{"redis+unix:///tmp/s", "by a socket"},
		{"postgres:///db?host=/tmp", "a socket"},
		{"postgres://a,b/db", "several servers"},
		{"postgres://h/db?sslmode=verify-full", "by TLS"},
		{"mysql://root@h/app?tls=true", "by TLS"},
		{"mysql://root@h/app?socket=/tmp/s", "a socket"},
		{"sqlite:/srv/dibs.db", "no server"},
		{"memory:", "no server"},
	} {
		wires, urls, err := fault.Through(test.url, 1)
		if err != nil {
			if strings.Contains(test.want, "WIRE") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v; want %s", test.url, err, test.want)
			}
			continue
		}
		want := strings.ReplaceAll(test.want, "WIRE", wires[0].Addr())
		if urls[0] != want {
			t.Errorf("%s: through the wire it is %s; want %s", test.url, urls[0], want)
		}
		testkit.Check(t, wires[0].Close())
	}
}
