package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
)

// refusal is an address at which there is not what its URL says.
type refusal struct {
	name, url string
	is        error
	want      string // in the error's text
}

// TestOpenRefuses: what is at the address and is not what the URL says, or is nothing, is
// an error that has its cure and not the password. Nothing is left running.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	plain := servertest.Redis(t, nil)
	replica := servertest.Redis(t, nil)
	replica.Must("REPLICAOF", "127.0.0.1", 1)
	locked := servertest.Redis(t, &servertest.RedisOptions{
		Password: "right",
		Users:    []string{"app on >right ~dibs:* &dibs:* +@all", "guest on >right ~* &* -@all +ping"},
	})
	secure := servertest.Redis(t, &servertest.RedisOptions{TLS: true})
	strict := servertest.Redis(t, &servertest.RedisOptions{TLS: true, Directives: []string{"tls-auth-clients yes"}})
	full := servertest.Redis(t, &servertest.RedisOptions{Directives: []string{"maxclients 1"}})
	only, err := full.Dial()
	testkit.Must(t, err)
	defer only.Close()
	if _, err := only.Do("PING"); err != nil {
		t.Fatal(err)
	}
	foreign := servertest.Redis(t, nil)
	foreign.Must("LPUSH", "dibs:fence", "theirs")
	paused := servertest.Redis(t, nil)
	paused.Pause()
	gone := servertest.Redis(t, nil)
	gone.Kill()
	hanging := servertest.NewWire(t, plain.Addr())
	hanging.Set(wire.Trouble{Hold: true}, nil)
	mute := servertest.NewWire(t, plain.Addr())
	mute.Set(wire.Trouble{Lose: [2]bool{wire.Replies: true}}, nil)
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	at := func(s *servertest.RedisServer) string { return "redis://" + s.Addr() }
	ca := "?ca=" + secure.CAFile()

	refuses(t, []refusal{
		{"no password", at(locked), ErrUnauthorized, "wants a password"},
		{"wrong password", "redis://:secret@" + locked.Addr(), ErrUnauthorized, "the password is wrong"},
		{"wrong user", "redis://nobody:secret@" + locked.Addr(), ErrUnauthorized, "user name or the password"},
		{"no rights", "redis://guest:right@" + locked.Addr(), ErrUnauthorized, "README"},
		{"rights to other keys", "redis://app:right@" + locked.Addr() + "?prefix=other", ErrUnauthorized, "README"},
		{"database", at(plain) + "/99", ErrUnsupported, "fewer databases"},
		{"values of others", at(foreign), ErrForeign, "Options.Prefix"},
		{"replica", at(replica), ErrReadOnly, "connect to the master"},
		{"TLS where there is none", "rediss://:secret@" + plain.Addr(), ErrUnreachable, "write redis instead of rediss"},
		{"no TLS where there is", "redis://:secret@" + secure.Addr(), ErrUnreachable, "write rediss instead of redis"},
		{"certificate that is not trusted", "rediss://:secret@" + secure.Addr(), ErrUnreachable, "?ca=FILE"},
		{"certificate of another", "rediss://" + secure.Addr() + ca + "&server-name=example.org", ErrUnreachable, "?server-name="},
		{"no certificate of ours", "rediss://" + strict.Addr() + ca, ErrUnreachable, "?cert=FILE"},
		{"no such file", "rediss://" + secure.Addr() + "?ca=/nowhere.pem", nil, "/nowhere.pem"},
		{"no certificate in the file", "rediss://" + secure.Addr() + "?ca=" + keyFile(secure), nil, "no certificate in PEM"},
		{"too many clients", at(full), ErrCrowded, "maxclients"},
		{"no server", at(gone), ErrUnreachable, "refused"},
		{"no such host", "redis://dibs.invalid", ErrUnreachable, "dibs.invalid"},
		{"paused", at(paused), ErrUnreachable, "has not answered"},
		{"hanging", "redis://:secret@" + hanging.Addr(), ErrUnreachable, "has not answered"},
		{"mute", "redis://:secret@" + mute.Addr(), ErrUnreachable, "has not answered"},
		{"silent over TLS", "rediss://:secret@" + paused.Addr(), ErrUnreachable, "has not answered"},
		{"web server", "redis://:secret@" + strings.TrimPrefix(web.URL, "http://"), ErrUnsupported, "is not a Redis"},
		{"SSH", "redis://:secret@" + speaking(t, func(conn net.Conn) { fmt.Fprint(conn, "SSH-2.0-OpenSSH_9.9\r\n") }), ErrUnsupported, "SSH-2.0"},
		{"hangs up", "redis://" + speaking(t, func(net.Conn) {}), ErrUnreachable, "hung up"},
		{"too old", "redis://" + pretending(t, "6.0.16"), ErrUnsupported, "6.2 or newer"},
		{"much too old", "redis://" + pretending(t, ""), ErrUnsupported, "6.2 or newer"},
		{"no socket", "redis+unix:///nowhere/redis.sock", ErrUnreachable, "/nowhere/redis.sock"},
		{"no cluster", "redis+cluster://" + plain.Addr(), ErrUnsupported, "write redis://"},
		{"none of two a cluster", "redis+cluster://" + plain.Addr() + "," + replica.Addr(), ErrUnsupported, "write redis://"},
		{"cluster with a wrong password", "redis+cluster://:secret@" + locked.Addr(), ErrUnauthorized, "password"},
		{"cluster that is gone", "redis+cluster://:secret@" + gone.Addr() + "," + hanging.Addr(), ErrUnreachable, ""},
		{"old cluster", "redis+cluster://" + pretendingCluster(t, "6.2.14"), ErrUnsupported, "7.0 or newer"},
		{"no sentinel", "redis+sentinel://" + plain.Addr() + "/dibs", ErrUnsupported, "not a sentinel"},
		{"sentinels that are gone", "redis+sentinel://:secret@" + gone.Addr() + "," + hanging.Addr() + "/dibs", ErrUnreachable, ""},
		{"sentinels that hang", "redis+sentinel://:secret@" + paused.Addr() + "," + hanging.Addr() + "," + mute.Addr() + "/dibs", ErrUnreachable, ""},
		{"sentinels that want a password", "redis+sentinel://:right@" + locked.Addr() + "/dibs", ErrUnauthorized, "sentinel-password="},
		{"what says that it is a node of a cluster", "redis://" + pretendingCluster(t, "7.0.0"), ErrUnsupported, "write redis+cluster://"},
		{"what says that it is a sentinel", "redis://" + pretend(t, "7.0.0", "sentinel"), ErrUnsupported, "write redis+sentinel://"},
	})
	t.Run("given up", func(t *testing.T) {
		nothingRuns(t, func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer time.AfterFunc(20*time.Millisecond, cancel).Stop()
			if _, err := Open(ctx, at(paused), nil); !errors.Is(err, context.Canceled) {
				t.Errorf("%v; want that it was cancelled", err)
			}
		})
	})
}

// refuses opens four of them at once, because some take their time, and because servers that answer
// have to do so within the store's limit.
func refuses(t *testing.T, tests []refusal) {
	t.Helper()
	nothingRuns(t, func() {
		var all sync.WaitGroup
		slots := make(chan struct{}, 4)
		for _, test := range tests {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				s, err := Open(t.Context(), test.url, nil)
				if err == nil {
					s.Close()
					t.Errorf("%s: it was opened", test.name)
					return
				}
				if test.is != nil && !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%s: %v; want %v with %q", test.name, err, test.is, test.want)
				}
				for _, secret := range []string{"secret", "right@"} {
					if strings.Contains(err.Error(), secret) {
						t.Errorf("%s: the password is in %q", test.name, err)
					}
				}
				if strings.Count(err.Error(), "redisstore: ") != 1 {
					t.Errorf("%s: %q stutters", test.name, err)
				}
			})
		}
		all.Wait()
	})
}

// nothingRuns does something and waits until no goroutine runs any more that it started.
func nothingRuns(t *testing.T, do func()) {
	t.Helper()
	label := t.Name() // goroutines inherit it
	pprof.Do(t.Context(), pprof.Labels("opened by", label), func(context.Context) { do() })
	testkit.Eventually(t, "no goroutine is left", func() bool {
		var profile strings.Builder
		testkit.Must(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
		return !strings.Contains(profile.String(), strconv.Quote(label))
	})
}

// speaking returns the address of a server that says something to each client, and hangs
// up once the client has said something.
func speaking(t *testing.T, say func(net.Conn)) string {
	t.Helper()
	return testkit.Serve(t, func(_ int, conn *net.TCPConn) {
		say(conn)
		_, _ = conn.Read(make([]byte, 64))
	})
}

// pretending returns the address of a server that says to be Redis of that
// version, and of one that is older than HELLO if it is "". Real ones of that age
// are nowhere to be had any more.
func pretending(t *testing.T, version string) string { return pretend(t, version, "standalone") }

func pretendingCluster(t *testing.T, version string) string { return pretend(t, version, "cluster") }

func pretend(t *testing.T, version, mode string) string {
	t.Helper()
	var addr string
	addr = speaking(t, func(conn net.Conn) {
		r := bufio.NewReader(conn)
		for {
			args, err := readCommand(r)
			if err != nil {
				return
			}
			answer := "+OK\r\n"
			switch {
			case args[0] == "PING":
				answer = "+PONG\r\n"
			case args[0] == "HELLO" && version == "":
				answer = "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n"
			case args[0] == "HELLO":
				answer = fmt.Sprintf("%%4\r\n$5\r\nproto\r\n:3\r\n$7\r\nversion\r\n$%d\r\n%s\r\n$4\r\nmode\r\n$%d\r\n%s\r\n$4\r\nrole\r\n$6\r\nmaster\r\n", len(version), version, len(mode), mode)
			case args[0] == "CLUSTER":
				host, port, _ := net.SplitHostPort(addr)
				answer = fmt.Sprintf("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$%d\r\n%s\r\n:%s\r\n$1\r\nx\r\n", len(host), host, port)
			}
			if _, err := io.WriteString(conn, answer); err != nil {
				return
			}
		}
	})
	return addr
}

// readCommand reads one command in RESP.
func readCommand(r *bufio.Reader) ([]string, error) {
	var n int
	if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		var size int
		if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(r, text); err != nil {
			return nil, err
		}
		args[i] = strings.ToUpper(string(text[:size]))
	}
	return args, nil
}
