package mysqlstore

import "context"

// Version returns the version of the tables that are there, 0 when there are none, and
// the one that this program wants. Of the options it uses Prefix; the errors are those
// of Open.
func Version(ctx context.Context, db DB, o *Options) (have, want int, err error) {
	options, err := o.withDefaults()
	if err != nil {
		return 0, version, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return 0, version, explain(err)
	}
	defer conn.Close()
	have, err = namer{prefix: options.Prefix}.version(ctx, conn)
	return have, version, explain(err)
}
