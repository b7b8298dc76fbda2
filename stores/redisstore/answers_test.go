package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/store"
)

// answering is an address in front of a Redis that answers chosen commands with an error. The
// server itself gives that answer, because it gets a script instead of the command. So the
// answer comes in its turn.
type answering struct {
	addr string

	mu      sync.Mutex
	seen    map[string]bool
	command string // whose answer is wrong, in capitals; "*": every command
	answer  string // "": none
	conns   map[net.Conn]bool
}

func newAnswering(t *testing.T, server *servertest.RedisServer) *answering {
	t.Helper()
	a := &answering{seen: map[string]bool{}, conns: map[net.Conn]bool{}}
	a.addr = testkit.Serve(t, func(_ int, client *net.TCPConn) {
		conn, err := net.Dial("tcp", server.Addr())
		if err != nil {
			return
		}
		defer conn.Close()
		a.mu.Lock()
		a.conns[client] = true
		a.mu.Unlock()
		defer func() {
			a.mu.Lock()
			delete(a.conns, client)
			a.mu.Unlock()
		}()
		go func() {
			_, _ = io.Copy(client, conn)
			client.Close()
		}()
		for r := bufio.NewReader(client); ; {
			request, command, err := readRequest(r)
			if err != nil {
				return
			}
			if _, err := io.WriteString(conn, a.instead(request, command)); err != nil {
				return
			}
		}
	})
	return a
}

// instead returns the request, or the one whose answer is the error.
func (a *answering) instead(request, command string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen[command] = true
	if a.answer == "" || a.command != "*" && a.command != command {
		return request
	}
	const script = "return redis.error_reply(ARGV[1])"
	answer := strings.ReplaceAll(a.answer, "COMMAND", strings.ToLower(command))
	return fmt.Sprintf("*4\r\n$4\r\nEVAL\r\n$%d\r\n%s\r\n$1\r\n0\r\n$%d\r\n%s\r\n", len(script), script, len(answer), answer)
}

// set has a command answered so from now on.
func (a *answering) set(command, answer string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.command, a.answer = command, answer
}

// reset ends all connections, so that the client makes new ones.
func (a *answering) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for conn := range a.conns {
		conn.Close()
	}
}

// commands returns the commands that were sent.
func (a *answering) commands() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.seen))
}

// readRequest reads one command, and returns it as it was sent and its name in capitals.
func readRequest(r *bufio.Reader) (request, command string, err error) {
	var b strings.Builder
	line := func() (n int) {
		text, readErr := r.ReadString('\n')
		if err = readErr; err == nil {
			b.WriteString(text)
			_, err = fmt.Sscanf(text[1:], "%d", &n)
		}
		return n
	}
	for i, n := 0, line(); i < n && err == nil; i++ {
		size := line()
		if err != nil {
			break
		}
		text := make([]byte, size+2)
		if _, err = io.ReadFull(r, text); err != nil {
			break
		}
		b.Write(text)
		if i == 0 {
			command = strings.ToUpper(string(text[:size]))
		}
	}
	return b.String(), command, err
}

// answersOfRedis are answers that a server can give to any command.
var answersOfRedis = []string{
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
	"LOADING Redis is loading the dataset in memory",
	"READONLY You can't write against a read only replica.",
	"OOM command not allowed when used memory > 'maxmemory'.",
	"NOPERM User app has no permissions to run the 'COMMAND' command",
	"NOAUTH Authentication required.",
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"CLUSTERDOWN The cluster is down",
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
	"TRYAGAIN Multiple keys request during rehashing of slot",
	"NOREPLICAS Not enough good replicas to write.",
	"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
	"ERR unknown command 'COMMAND', with args beginning with: ",
}

// useAll calls everything that a store has once, and returns the errors.
func useAll(ctx context.Context, s *Store) (errs []error) {
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	name := store.NewToken().ID() // what an earlier call has left does not matter
	c, next := lock(name, answered), lock(name, queued)
	answers := make([]store.Answer, 1)
	add(s.Claim(ctx, []store.Claim{c}, answers))
	add(answers[0].Err)
	add(s.Claim(ctx, []store.Claim{next}, answers))
	add(answers[0].Err)
	for _, err := range s.List(ctx, store.Query{}) {
		add(err)
	}
	for _, err := range s.List(ctx, store.Query{HeldFor: longHeld, Conditions: []store.Condition{store.ConditionHeld}}) {
		add(err)
	}
	_, err := s.Check(ctx)
	add(err)
	add(renewal(ctx, s, store.Renewal{Key: c.Key, Token: c.Token, TTL: time.Hour}))
	add(settlement(ctx, s, store.Settlement{Key: next.Key, Token: next.Token, Outcome: store.Undo}))
	add(settlement(ctx, s, store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Undo}))
	return errs
}

// TestEveryAnswer: whatever a server answers to a command of the store or of its client, the
// process lives, calls end, and all is well again when the answers are. No command is sent that
// the client knows few answers to.
func TestEveryAnswer(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	servertest.Redis(t, &servertest.RedisOptions{ReplicaOf: server}).AwaitReplica()
	for name, parameters := range map[string]string{"alone": "", "replicated": "&replicas=1&replica-wait=1m"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAnswering(t, server)
			url := "redis://" + a.addr + "?prefix=" + testkit.Own() + parameters
			s := open(t, url, nil)
			t.Cleanup(s.Notify(func(store.Token, store.Answer) {}))
			well := func() bool { return len(useAll(t.Context(), s)) == 0 && s.subscriber.channel("") != pending }
			testkit.Eventually(t, "all is well", well)
			commands := a.commands()
			for _, command := range []string{"EVALSHA", "HELLO", "PING", "SUBSCRIBE", "PUBSUB", "GET", "ZSCAN", "INFO"} {
				if !slices.Contains(commands, command) {
					t.Errorf("%s was not sent, but %q", command, commands)
				}
			}
			for _, command := range append(commands, "*") {
				for _, answer := range answersOfRedis {
					a.set(command, answer)
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
					useAll(ctx, s)
					cancel()
					a.reset() // what is sent on new connections is answered so, too
					ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
					useAll(ctx, s)
					if other, err := Open(ctx, url, nil); err == nil {
						other.Close()
					}
					cancel()
					a.set("", "")
				}
				testkit.Eventually(t, "all is well after wrong answers to "+command, well)
			}
			for _, command := range a.commands() {
				if strings.Contains(command, "UNSUBSCRIBE") {
					t.Errorf("%s was sent", command)
				}
			}
		})
	}
}

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
