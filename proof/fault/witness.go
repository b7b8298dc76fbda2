package fault

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/stores/mysqlstore"
	"github.com/dibs-go/dibs/stores/pgstore"
)

// witness is a connection to a server, by no wire, with which a fault looks for its evidence. It
// is made for one strike, because it ends with the server.
type witness interface {
	// start differs between two starts of the server.
	start(ctx context.Context) (start, error)
	// now is the server's time of day.
	now(ctx context.Context) (time.Time, error)
	// sever ends connections that come from the addresses, and returns how many the server
	// says are gone.
	sever(ctx context.Context, from []*net.TCPAddr) (int, error)
	close()
}

// start identifies one start of a server.
type start struct {
	// id is another at each start; "" when the server has no such thing.
	id string
	// counts only grow until the server is started again.
	counts []int
}

// after reports whether the server was started again since the other start. It may miss a
// restart of a server without an ID.
func (l start) after(before start) bool {
	for i, n := range l.counts {
		if n < before.counts[i] {
			return true
		}
	}
	return l.id != before.id
}

// backends are the servers that faults know how to talk to.
var backends = map[string]func(ctx context.Context, url string) (witness, error){
	"redis": meetRedis, "postgres": meetPostgres, "mysql": meetMySQL, "http": meetServe, "etcd": meetServe,
}

// look is how long one look at a server may take.
const look = 5 * time.Second

// meet connects to the target's server, even after ctx has ended. It tries again for as long as
// one look may take, because a server that was just started may refuse connections.
func (t *Target) meet(ctx context.Context) (_ witness, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), look)
	defer cancel()
	for {
		w, refused := backends[t.backend()](ctx, t.url())
		if refused == nil {
			return w, nil
		}
		if err == nil || ctx.Err() == nil { // because the error at the end of the time says less
			err = fmt.Errorf("looking at the server: %w", refused)
		}
		if ctx.Err() != nil {
			return nil, err
		}
		_ = backoff.Sleep(ctx, 20*time.Millisecond)
	}
}

// ask connects to the server for one question, even after ctx has ended.
func ask[T any](ctx context.Context, t *Target, question func(witness, context.Context) (T, error)) (answer T, err error) {
	w, err := t.meet(ctx)
	if err != nil {
		return answer, err
	}
	defer w.close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), look)
	defer cancel()
	return question(w, ctx)
}

// mysqlWitness is the witness of a MySQL or MariaDB.
type mysqlWitness struct {
	db   *sql.DB
	conn *sql.Conn
}

func meetMySQL(ctx context.Context, url string) (witness, error) {
	config, _, err := mysqlstore.ParseURL(url, nil)
	if err != nil {
		return nil, err
	}
	config.Timeout = look
	config.Logger = &mysql.NopLogger{} // what goes wrong is returned
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &mysqlWitness{db, conn}, nil
}

// start is what begins at 0 with each start: seconds, and connections that were tried.
func (w *mysqlWitness) start(ctx context.Context) (start, error) {
	up, err := w.status(ctx, "Uptime")
	if err != nil {
		return start{}, err
	}
	connections, err := w.status(ctx, "Connections")
	return start{counts: []int{up, connections}}, err
}

func (w *mysqlWitness) now(ctx context.Context) (time.Time, error) {
	var s float64
	err := w.conn.QueryRowContext(ctx, "SELECT UNIX_TIMESTAMP(SYSDATE(6))").Scan(&s)
	return time.UnixMicro(int64(s * 1e6)), err
}

func (w *mysqlWitness) sever(ctx context.Context, from []*net.TCPAddr) (gone int, err error) {
	all, err := w.processes(ctx)
	if err != nil {
		return 0, err
	}
	for id, host := range all {
		if !slices.ContainsFunc(from, func(a *net.TCPAddr) bool { return a.String() == host }) {
			continue
		}
		if _, err := w.conn.ExecContext(ctx, "KILL "+strconv.FormatInt(id, 10)); err != nil {
			if isNumber(err, noSuchThread) {
				continue // it went by itself
			}
			return gone, err
		}
		// KILL sets a flag, and the connection ends when it looks at the flag.
		left := true
		await(evidence, func() bool {
			all, err = w.processes(ctx)
			_, left = all[id]
			return err != nil || !left
		})
		if err != nil {
			return gone, err
		}
		if !left {
			gone++
		}
	}
	return gone, nil
}

// Errors of the servers.
const (
	noSuchThread  = 1094
	cannotConvert = 3854
)

func isNumber(err error, number uint16) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && e.Number == number
}

// processes returns the hosts of the server's connections, by their IDs. MySQL returns an error
// if it cannot decode a statement that a connection is about to run; it can a moment later.
func (w *mysqlWitness) processes(ctx context.Context) (all map[int64]string, err error) {
	await(evidence, func() bool {
		all, err = w.processesNow(ctx)
		return !isNumber(err, cannotConvert)
	})
	return all, err
}

func (w *mysqlWitness) processesNow(ctx context.Context) (map[int64]string, error) {
	rows, err := w.conn.QueryContext(ctx, "SELECT ID, HOST FROM INFORMATION_SCHEMA.PROCESSLIST")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[int64]string{}
	for rows.Next() {
		var id int64
		var host string
		if err := rows.Scan(&id, &host); err != nil {
			return nil, err
		}
		all[id] = host
	}
	return all, rows.Err()
}

func (w *mysqlWitness) status(ctx context.Context, name string) (n int, err error) {
	var key string
	err = w.conn.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(&key, &n)
	return n, err
}

func (w *mysqlWitness) close() { _ = errors.Join(w.conn.Close(), w.db.Close()) } // the server may have ended it before

// postgresWitness is the witness of a PostgreSQL.
type postgresWitness struct{ conn *pgx.Conn }

func meetPostgres(ctx context.Context, url string) (witness, error) {
	config, _, err := pgstore.Parse(url, nil)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, err
	}
	return &postgresWitness{conn}, nil
}

func (w *postgresWitness) start(ctx context.Context) (start, error) {
	id, err := one[string](ctx, w.conn, "SELECT pg_postmaster_start_time()::text")
	return start{id: id}, err
}

func (w *postgresWitness) now(ctx context.Context) (time.Time, error) {
	return one[time.Time](ctx, w.conn, "SELECT clock_timestamp()")
}

func (w *postgresWitness) sever(ctx context.Context, from []*net.TCPAddr) (gone int, err error) {
	var ports []int32
	for _, addr := range from {
		ports = append(ports, int32(addr.Port))
	}
	// The planner orders the conditions of a WHERE, but not those of a CASE. Connections of
	// others must not be ended.
	rows, err := w.conn.Query(ctx, `SELECT pid FROM (
			SELECT pid, CASE WHEN client_port = ANY($1) AND host(client_addr) = ANY($2) THEN pg_terminate_backend(pid) END AS ended
			FROM pg_stat_activity) AS all_of_them
		WHERE ended`, ports, hosts(from))
	if err != nil {
		return 0, err
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return 0, err
	}
	// That was a signal. The rows of the ended connections go away.
	left := len(pids)
	await(evidence, func() bool {
		if left > 0 && err == nil {
			left, err = one[int](ctx, w.conn, "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1)", pids)
		}
		return left == 0 || err != nil
	})
	return len(pids) - left, err
}

func (w *postgresWitness) close() {
	ctx, cancel := context.WithTimeout(context.Background(), look)
	defer cancel()
	_ = w.conn.Close(ctx) // the server may have ended it before
}

// one returns the one value of the one row.
func one[T any](ctx context.Context, conn *pgx.Conn, query string, args ...any) (value T, err error) {
	err = conn.QueryRow(ctx, query, args...).Scan(&value)
	return value, err
}

// hosts are the hosts of the addresses.
func hosts(from []*net.TCPAddr) (all []string) {
	for _, addr := range from {
		all = append(all, addr.IP.String())
	}
	return all
}

// redisWitness is the witness of a Redis.
type redisWitness struct{ client rueidis.Client }

func meetRedis(ctx context.Context, url string) (witness, error) {
	bare, _, _ := strings.Cut(url, "?") // what is behind it is the store's
	option, err := rueidis.ParseURL(bare)
	if err != nil {
		return nil, err
	}
	option.DisableCache, option.DisableRetry, option.ForceSingleClient = true, true, true
	option.Dialer.Timeout = look
	if end, ok := ctx.Deadline(); ok {
		option.Dialer.Timeout = max(time.Until(end), time.Millisecond)
	}
	client, err := rueidis.NewClient(option)
	if err != nil {
		return nil, err
	}
	return &redisWitness{client}, nil
}

// meetRedis is meet for what is done to a Redis alone.
func (t *Target) meetRedis(ctx context.Context) (*redisWitness, error) {
	w, err := t.meet(ctx)
	if err != nil {
		return nil, err
	}
	return w.(*redisWitness), nil
}

func (w *redisWitness) start(ctx context.Context) (start, error) {
	id, err := w.info(ctx, "run_id")
	return start{id: id}, err
}

func (w *redisWitness) now(ctx context.Context) (time.Time, error) {
	parts, err := w.do(ctx, "TIME").AsStrSlice()
	if err != nil || len(parts) != 2 {
		return time.Time{}, fmt.Errorf("TIME: %q, %w", parts, err)
	}
	s, err := strconv.ParseInt(parts[0], 10, 64)
	return time.Unix(s, 0), err
}

func (w *redisWitness) sever(ctx context.Context, from []*net.TCPAddr) (gone int, err error) {
	for _, addr := range from {
		n, err := w.do(ctx, "CLIENT", "KILL", "ADDR", addr.String()).AsInt64()
		if err != nil {
			return gone, err
		}
		gone += int(n)
	}
	return gone, nil
}

// unscripted returns how often the server was asked for a script that it did not know.
func (w *redisWitness) unscripted(ctx context.Context) (int, error) {
	value, err := w.info(ctx, "errorstat_NOSCRIPT") // "count=3"
	if err != nil || value == "" {
		return 0, err
	}
	return strconv.Atoi(strings.TrimPrefix(value, "count="))
}

// info returns a field of INFO, or "".
func (w *redisWitness) info(ctx context.Context, field string) (string, error) {
	all, err := w.do(ctx, "INFO", "everything").ToString()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(all) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", nil
}

func (w *redisWitness) do(ctx context.Context, command ...string) rueidis.RedisResult {
	return w.client.Do(ctx, w.client.B().Arbitrary(command...).Build())
}

func (w *redisWitness) close() { w.client.Close() }

// serveWitness is the witness of a dibs serve, or of an etcd, which has the same page of metrics.
// It makes a connection for each question.
type serveWitness struct{ metrics string }

func meetServe(_ context.Context, storeURL string) (witness, error) {
	u, err := url.Parse(storeURL)
	if err != nil {
		return nil, errors.New("the URL of the server cannot be read") // without the token in it
	}
	if u.Scheme == "etcd" {
		u.Scheme = "http"
	}
	return &serveWitness{u.JoinPath("metrics").String()}, nil
}

// start reads when the server's process was started.
func (w *serveWitness) start(ctx context.Context) (start, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.metrics, nil)
	if err != nil {
		return start{}, err
	}
	if token, ok := r.URL.User.Password(); ok {
		r.URL.User = nil
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		return start{}, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if at, ok := strings.CutPrefix(lines.Text(), "process_start_time_seconds "); ok {
			return start{id: at}, nil
		}
	}
	return start{}, errors.Join(fmt.Errorf("GET /metrics: %s without the time of the start", resp.Status), lines.Err())
}

var errNotServe = errors.New("the server cannot be asked for that")

func (*serveWitness) now(context.Context) (time.Time, error)             { return time.Time{}, errNotServe }
func (*serveWitness) sever(context.Context, []*net.TCPAddr) (int, error) { return 0, errNotServe }
func (*serveWitness) close()                                             {}
