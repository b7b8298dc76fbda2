package pgstore

import (
	"strconv"
	"strings"

	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/storekit"
)

// statements are what the store sends.
type statements struct {
	claim, renew, settle, stuck, settleIn *statement

	outlive                                                                                        *statement // see Store.work
	beginWork, beginLook                                                                           []query
	create, rows, lockRows, passRows, now, leases, saved, places, lookPlaces, numbers, lookNumbers *statement // see Store.load

	writeRows, writeLeases, writePlaces, dropLeases, dropPlaces, dropNumbers, notify *statement // see Store.write
	steps                                                                            [engine.ReadSize + 1]*statement

	list [storekit.Kept + 1]*statement // by the part
}

const (
	rowColumns   = "k," + engine.RowColumns
	leaseColumns = "k," + engine.LeaseColumns
	placeColumns = "k," + engine.PlaceColumns

	// planned makes the server use the indexes, even if its statistics say that a table is small
	// enough to be read as a whole.
	planned = "set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), " +
		"set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)"
)

var commit = query{statement: &statement{sql: "COMMIT"}}

func (n namer) statements() *statements {
	key := []any{""}
	row := append(key, new(engine.Row).Fields()...)
	lease := append(key, new(engine.Lease).Fields()...)
	place := append(key, new(engine.Place).Fields()...)
	// of lists columns with a prefix.
	of := func(prefix, columns string) string {
		return prefix + strings.ReplaceAll(columns, ",", ","+prefix)
	}
	// set assigns columns.
	set := func(from, columns string) string {
		all := strings.Split(columns, ",")
		for i, c := range all {
			all[i] = c + "=" + from + c
		}
		return strings.Join(all, ",")
	}
	upsert := func(table, columns, id string, like []any) string {
		return "INSERT INTO @" + table + " (" + columns + ") SELECT * FROM " + unnest(like) +
			" ON CONFLICT (" + id + ") DO UPDATE SET " + set("excluded.", columns)
	}
	remove := func(table, columns string, like ...any) string {
		var sql strings.Builder
		sql.WriteString("DELETE FROM @" + table + " t USING " + unnest(like) + " AS u (" + columns + ") WHERE true")
		for c := range strings.SplitSeq(columns, ",") {
			sql.WriteString(" AND t." + c + " = u." + c)
		}
		return sql.String()
	}
	rows := "SELECT " + rowColumns + " FROM unnest($1::bytea[]) AS u (key), LATERAL (SELECT * FROM @key t WHERE t.k = u.key LIMIT 1"
	w := of("w.", placeColumns)
	// Who only looks at a key needs no right but SELECT, so it calls no function of the store and
	// takes no number.
	places := func(unreachable string) string {
		return "SELECT true, " + unreachable + ", " + w +
			" FROM unnest($1::bytea[]) AS u (key), LATERAL (SELECT * FROM @waiter w WHERE w.k = u.key ORDER BY w.seq LIMIT $2) w" +
			" UNION ALL SELECT false, false, " + w +
			" FROM unnest($1::bytea[]) AS u (key), LATERAL (SELECT * FROM @waiter w WHERE w.k = u.key ORDER BY w.seq DESC LIMIT 1) w" +
			" UNION ALL SELECT false, false, " + w +
			" FROM unnest($3::bytea[], $4::bytea[]) AS u (key, token) JOIN @waiter w ON w.token = u.token AND w.k = u.key"
	}
	numbers := func(next string) string {
		return "SELECT u.key, (SELECT count(*) FROM @waiter w WHERE w.k = u.key), " + next + " FROM unnest($1::bytea[]) AS u (key)"
	}
	s := &statements{
		claim:  n.statement("claim", "SELECT * FROM @claim_all($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"),
		renew:  n.statement("renew", "SELECT * FROM @renew_all($1, $2, $3, $4)"),
		settle: n.statement("settle", "SELECT * FROM @settle_all($1, $2, $3, $4, $5, $6)"),
		stuck: n.statement("stuck", "WITH free AS MATERIALIZED (SELECT k FROM @key WHERE k = ANY ($1::bytea[]) FOR NO KEY UPDATE SKIP LOCKED)"+
			" SELECT k FROM @key WHERE k = ANY ($1) AND k NOT IN (SELECT k FROM free)"),
		settleIn: n.statement("settle_in", "SELECT @settle_in($1::text, $2::text, CASE WHEN $3::boolean THEN $4::text END, ($5::text)::interval, $6::text, 'base64', $7::text)"),

		// The server ends the transaction of a process that hangs or is cut off, because it keeps
		// rows locked.
		beginWork: []query{
			{statement: &statement{sql: "BEGIN ISOLATION LEVEL READ COMMITTED"}},
			{statement: n.statement("begin_work", "SELECT @begin_verb(), set_config('lock_timeout', '2s', true), set_config('idle_in_transaction_session_timeout', '5s', true), "+planned)},
		},
		beginLook: []query{
			{statement: &statement{sql: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"}},
			{statement: n.statement("begin_look", "SELECT "+planned)},
		},

		// As a claim does that is answered from a record, see sql/plain.sql. A transaction that is
		// READ ONLY may send messages.
		outlive: n.statement("outlive", "SELECT set_config('synchronous_commit', 'on', true) FROM (SELECT WHERE current_setting('synchronous_commit') = 'off') AS t"+
			" UNION ALL SELECT pg_logical_emit_message(true, 'dibs', '')::text WHERE current_setting('synchronous_standby_names') <> '' AND NOT pg_is_in_recovery()"),

		// This locks the rows that exist, too.
		create: n.statement("create", "INSERT INTO @key AS t (k, fence) SELECT u.k, 0 FROM unnest($1::bytea[]) AS u (k) ORDER BY u.k"+
			" ON CONFLICT (k) DO UPDATE SET fence = t.fence WHERE false"),
		rows:     n.statement("rows", rows+") t"),
		lockRows: n.statement("lock_rows", rows+" FOR UPDATE) t"),
		passRows: n.statement("pass_rows", rows+" FOR UPDATE SKIP LOCKED) t"),
		now:      n.statement("now", "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, fence FROM @meta"),
		leases: n.statement("leases", "SELECT "+leaseColumns+" FROM unnest($1::bytea[]) AS u (key),"+
			" LATERAL (SELECT * FROM @holder t WHERE t.k = u.key OFFSET 0) t ORDER BY k, ends"),
		saved: n.statement("saved", "SELECT k, fence FROM unnest($1::bytea[]) AS u (key),"+
			" LATERAL (SELECT * FROM @progress t WHERE t.k = u.key OFFSET 0) t"),
		places:      n.statement("places", places("w.kind = 0 AND w.process <> 0 AND NOT @is_listening(w.process)")),
		lookPlaces:  n.statement("look_places", places("false")),
		numbers:     n.statement("numbers", numbers("nextval('@number')")),
		lookNumbers: n.statement("look_numbers", numbers("0::bigint")),

		writeRows: n.statement("write_rows", "UPDATE @key t SET "+set("u.", engine.RowColumns)+", listed = u.rec_ends = 0 OR u.token <> '' FROM "+unnest(row)+
			" AS u ("+rowColumns+") WHERE t.k = u.k"),
		writeLeases: n.statement("write_leases", upsert("holder", leaseColumns, "k, token, abandoned", lease)),
		writePlaces: n.statement("write_places", upsert("waiter", placeColumns, "token, k", place)),
		dropLeases:  n.statement("drop_leases", remove("holder", "k,token,abandoned", "", "", true)),
		dropPlaces:  n.statement("drop_places", remove("waiter", "k,seq,token", "", int64(0), "")),
		dropNumbers: n.statement("drop_numbers", remove("waiter", "k,seq", "", int64(0))),
		notify: n.statement("notify", "SELECT pg_notify(@channel(u.process), convert_from(u.message, 'UTF8'))"+
			" FROM unnest($1::bigint[], $2::bytea[]) AS u (process, message)"),
	}
	some := func(from, which string) string {
		return "(SELECT " + from + " WHERE k >= $1 AND k <= $2" + which + " ORDER BY k LIMIT $3)"
	}
	list := func(name string, tables ...string) *statement {
		return n.statement(name, "SELECT k FROM ("+strings.Join(tables, " UNION ")+") t ORDER BY k LIMIT $3")
	}
	// A key with a place or an abandoned lease may have no lease, and a key with only reserved
	// places has no row in @key.
	queues, leases := some("DISTINCT k FROM @waiter", ""), some("DISTINCT k FROM @holder", "")
	s.list = [...]*statement{
		storekit.All:  list("list", some("k FROM @key", " AND (token <> '' OR busy OR rec_ends > 0)"), queues),
		storekit.Live: list("list_live", some("k FROM @key", " AND listed AND token <> ''"), leases, queues),
		storekit.Kept: list("list_kept", some("k FROM @key", " AND rec_ends > 0")),
	}
	for does, sql := range map[engine.Does]string{
		engine.WriteRecord:   "UPDATE @key SET rec_data = $2 WHERE k = $1",
		engine.EraseRecord:   "UPDATE @key SET rec_data = NULL WHERE k = $1",
		engine.WriteProgress: "INSERT INTO @progress (k, fence, data) VALUES ($1, $2, $3) ON CONFLICT (k, fence) DO UPDATE SET data = excluded.data",
		engine.DropProgress:  "DELETE FROM @progress WHERE k = $1 AND fence = $2",
		engine.ReadRecord:    "SELECT rec_data FROM @key WHERE k = $1",
		engine.ReadProgress:  "SELECT data FROM @progress WHERE k = $1 AND fence = $2",
		engine.ReadSize:      "SELECT coalesce(octet_length(rec_data), 0)::bigint FROM @key WHERE k = $1",
	} {
		s.steps[does] = n.statement("step_"+strconv.Itoa(int(does)), sql)
	}
	return s
}
