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
	"github.com/jackc/pgx/v5/stdlib"
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
	"redis": meetRedis, "postgres": meetPostgres, "mysql": meetMySQL, "http": meetServe, "etcd": meetServe, "s3": meetS3,
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

// sqlWitness is the witness of a PostgreSQL, MySQL or MariaDB, on one connection.
type sqlWitness struct {
	db   *sql.DB
	conn *sql.Conn
	sqlServer
}

// sqlServer is what such a server is asked.
type sqlServer struct {
	// started are queries of numbers or texts: the first column of the one row that each returns. Numbers
	// only grow until the server is started again.
	started []string
	clock   string // the time of day, in seconds
	// connections lists the others: ID, and host and port. end ends one, by its ID.
	connections, end string
	// passes reports whether an error of connections or end is over in a moment, and gone whether an error
	// of end says that there is no such connection.
	passes, gone func(error) bool
}

func meetPostgres(ctx context.Context, url string) (witness, error) {
	config, _, err := pgstore.Parse(url, nil)
	if err != nil {
		return nil, err
	}
	never := func(error) bool { return false }
	return meetSQL(ctx, stdlib.OpenDB(*config.ConnConfig), sqlServer{
		started:     []string{"SELECT pg_postmaster_start_time()::text"},
		clock:       "SELECT extract(epoch FROM clock_timestamp())::float8",
		connections: "SELECT pid, host(client_addr) || ':' || client_port FROM pg_stat_activity WHERE client_port IS NOT NULL",
		end:         "SELECT pg_terminate_backend(%d)",
		passes:      never, gone: never,
	})
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
	number := func(n uint16) func(error) bool {
		return func(err error) bool {
			e, ok := errors.AsType[*mysql.MySQLError](err)
			return ok && e.Number == n
		}
	}
	return meetSQL(ctx, sql.OpenDB(connector), sqlServer{
		started:     []string{"SHOW GLOBAL STATUS LIKE 'Uptime'", "SHOW GLOBAL STATUS LIKE 'Connections'"},
		clock:       "SELECT UNIX_TIMESTAMP(SYSDATE(6))",
		connections: "SELECT ID, HOST FROM INFORMATION_SCHEMA.PROCESSLIST",
		end:         "KILL %d",
		// It cannot decode a statement that a connection is about to run.
		passes: number(3854),
		gone:   number(1094),
	})
}

func meetSQL(ctx context.Context, db *sql.DB, of sqlServer) (witness, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &sqlWitness{db, conn, of}, nil
}

func (w *sqlWitness) start(ctx context.Context) (s start, err error) {
	for _, query := range w.started {
		rows, err := w.rows(ctx, query)
		if err != nil || len(rows) != 1 {
			return s, fmt.Errorf("%s: %d rows, %w", query, len(rows), err)
		}
		value := rows[0][len(rows[0])-1]
		if n, err := strconv.Atoi(value); err == nil {
			s.counts = append(s.counts, n)
		} else {
			s.id += value
		}
	}
	return s, nil
}

func (w *sqlWitness) now(ctx context.Context) (time.Time, error) {
	var s float64
	err := w.conn.QueryRowContext(ctx, w.clock).Scan(&s)
	return time.UnixMicro(int64(s * 1e6)), err
}

func (w *sqlWitness) sever(ctx context.Context, from []*net.TCPAddr) (gone int, err error) {
	all, err := w.others(ctx)
	for id, host := range all {
		if err != nil {
			return gone, err
		}
		if !slices.ContainsFunc(from, func(a *net.TCPAddr) bool { return a.String() == host }) {
			continue
		}
		if _, err = w.conn.ExecContext(ctx, fmt.Sprintf(w.end, id)); err != nil {
			if w.gone(err) {
				err = nil // it went by itself
			}
			continue
		}
		// That was a signal, or a flag. The connection ends a moment later.
		left := true
		await(evidence, func() bool {
			all, err = w.others(ctx)
			_, left = all[id]
			return err != nil || !left
		})
		if err == nil && !left {
			gone++
		}
	}
	return gone, err
}

// others returns the hosts of the server's connections, by their IDs.
func (w *sqlWitness) others(ctx context.Context) (all map[int]string, err error) {
	var rows [][]string
	await(evidence, func() bool {
		rows, err = w.rows(ctx, w.connections)
		return err == nil || !w.passes(err)
	})
	all = map[int]string{}
	for _, row := range rows {
		id, wrong := strconv.Atoi(row[0])
		all[id], err = row[1], errors.Join(err, wrong)
	}
	return all, err
}

// rows returns the rows of two columns, or of one, as text.
func (w *sqlWitness) rows(ctx context.Context, query string) (all [][]string, err error) {
	rows, err := w.conn.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	for err == nil && rows.Next() {
		row, to := make([]string, len(columns)), make([]any, len(columns))
		for i := range row {
			to[i] = &row[i]
		}
		err = rows.Scan(to...)
		all = append(all, row)
	}
	return all, errors.Join(err, rows.Err())
}

func (w *sqlWitness) close() { _ = errors.Join(w.conn.Close(), w.db.Close()) } // the server may have ended it before

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

// get asks for the page. The caller closes the body of the answer.
func (w *serveWitness) get(ctx context.Context) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.metrics, nil)
	if err != nil {
		return nil, err
	}
	if token, ok := r.URL.User.Password(); ok {
		r.URL.User = nil
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return client.Do(r)
}

// start reads when the server's process was started.
func (w *serveWitness) start(ctx context.Context) (start, error) {
	resp, err := w.get(ctx)
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

// now reads the date of an answer, which has whole seconds.
func (w *serveWitness) now(ctx context.Context) (time.Time, error) {
	resp, err := w.get(ctx)
	if err != nil {
		return time.Time{}, err
	}
	defer resp.Body.Close()
	return http.ParseTime(resp.Header.Get("Date"))
}

var errNotServe = errors.New("the server cannot be asked for that")

func (*serveWitness) sever(context.Context, []*net.TCPAddr) (int, error) { return 0, errNotServe }
func (*serveWitness) close()                                             {}

// s3Witness is the witness of an object storage. It cannot be asked when it was started: its Server is
// a starter.
type s3Witness struct{ serveWitness }

func meetS3(_ context.Context, storeURL string) (witness, error) {
	_, host, _ := around(storeURL)
	return &s3Witness{serveWitness{"http://" + host + "/health"}}, nil
}

func (w *s3Witness) start(ctx context.Context) (start, error) {
	resp, err := w.get(ctx)
	if err != nil {
		return start{}, err
	}
	return start{}, resp.Body.Close()
}
