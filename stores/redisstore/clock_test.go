package redisstore

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"go/ast"
	"go/parser"
	"go/token"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestNoClock: clients whose clocks are an hour apart make no difference, because
// no time of day is ever read off a clock: what is measured are durations, on the
// monotonic clock, and the only time that counts is the server's.
func TestNoClock(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	testkit.Must(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, at := range wallClock(t, file, nil) {
			t.Errorf("%s: it looks at the time of day", at)
		}
	}
	scripts, err := filepath.Glob("lua/*.lua")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range scripts {
		text := testkit.ReadFile(t, file)
		if m := regexp.MustCompile(`os\.time|'P?EXAT'|'P?EXPIREAT'`).Find(text); m != nil {
			t.Errorf("%s has %s", file, m)
		}
	}

	const sample = "package p\nimport \"time\"\nfunc f() (int64, bool) { t := time.Now(); return t.UnixMicro(), time.Since(t) > time.Second }\n"
	if got := wallClock(t, "sample.go", sample); len(got) != 1 {
		t.Errorf("the check finds %d clocks in the sample, want 1: %q", len(got), got)
	}
}

// dayTimes are the methods of time.Time that return the time of day. The others return
// durations, as long as the monotonic reading is there.
var dayTimes = []string{
	"Unix", "UnixMilli", "UnixMicro", "UnixNano", "Format", "AppendFormat", "GoString", "Date", "Clock", "Year",
	"Month", "Day", "YearDay", "ISOWeek", "Weekday", "Hour", "Minute", "Second", "Nanosecond", "In", "UTC", "Local",
	"MarshalText", "MarshalJSON", "MarshalBinary",
}

// wallClock returns where a source calls one of dayTimes.
func wallClock(t *testing.T, name string, source any) (found []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, 0)
	testkit.Must(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains(dayTimes, sel.Sel.Name) {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
			return true // time.Unix makes a time, and reads none
		}
		found = append(found, set.Position(sel.Pos()).String())
		return true
	})
	return found
}

// recordedConn notes what is written.
type recordedConn struct {
	net.Conn
	note func([]byte)
}

func (c *recordedConn) Write(b []byte) (int, error) {
	c.note(b)
	return c.Conn.Write(b)
}

// TestNoTimeTravels: of all that a store sends to the server nothing is the time.
func TestNoTimeTravels(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	var mu sync.Mutex
	var sent []byte
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{sharedRedis().Addr()}, DisableCache: true, ForceSingleClient: true,
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			return &recordedConn{conn, func(b []byte) {
				mu.Lock()
				defer mu.Unlock()
				sent = append(sent, b...)
			}}, nil
		},
	})
	testkit.Must(t, err)
	defer client.Close()
	s, err := New(client, &Options{Prefix: testkit.Own()})
	testkit.Must(t, err)
	defer s.Close()
	exercise(t, s)

	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(string(sent), "EVALSHA") {
		t.Fatal("nothing was recorded")
	}
	ended := time.Now()
	// No longer than the test, so that no bytes that are random are taken for it.
	isTime := func(n uint64) bool {
		for _, unit := range []int64{int64(time.Second), int64(time.Millisecond), int64(time.Microsecond), 1} {
			if int64(n) >= begun.UnixNano()/unit && int64(n) <= ended.UnixNano()/unit {
				return true
			}
		}
		return false
	}
	for i := range len(sent) - 8 {
		if n := binary.BigEndian.Uint64(sent[i:]); isTime(n) {
			t.Errorf("the time is sent: %q", sent[max(0, i-50):i+8])
		}
	}
	for _, digits := range regexp.MustCompile(`\d{9,19}`).FindAll(sent, -1) {
		if n, err := strconv.ParseUint(string(digits), 10, 64); err == nil && isTime(n) {
			t.Errorf("the time is sent: %s", digits)
		}
	}
}

// exercise does with a store whatever can be done.
func exercise(t *testing.T, s *Store) {
	t.Helper()
	testkit.Must(t, exerciseAll(t.Context(), s, testkit.Limit))
}
