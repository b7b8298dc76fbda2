package mysqlstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/store/storekit"
)

// openLimit bounds Open and New. Only tests change it.
var openLimit = 8 * time.Second

// migrateLimit bounds the migration with Options.Migrate.
const migrateLimit = time.Minute

// Open connects to the database that the URL names and returns a Store on it. Options may be nil.
// The URL overrides them:
//
//	mysql://USER:PASSWORD@HOST[:PORT]/DATABASE?prefix=P&migrate=true&tls=true|false|preferred|skip-verify&tls-ca=FILE&socket=FILE
//
// It may begin with mariadb:// too. tls-ca is a PEM file with the certificates that sign the
// server's certificate. socket is the server's socket; HOST is left out then. Open makes one call,
// and takes 8 s at most; with Options.Migrate a minute more.
//
// The errors say what is wrong and what to do: ErrURL; ErrUnreachable if no server answers;
// ErrUnsupported if the server cannot be used, such as a Galera cluster (docs/reference/databases.md);
// ErrUnauthorized if it refuses the user; ErrReadOnly
// if it takes no writes; ErrNotMigrated if the tables are missing; ErrNewer if they are newer;
// ErrCrowded if the server has no connection left; and the errors of calls.
func Open(ctx context.Context, rawURL string, o *Options) (*Store, error) {
	config, o, err := parse(rawURL, o)
	if err != nil {
		return nil, err
	}
	return New(ctx, config, o)
}

// ParseURL reads a URL as Open does, without connecting. It returns the settings of the
// connection, for New or mysql.NewConnector, and a copy of the options that the URL overrides.
func ParseURL(rawURL string, o *Options) (*mysql.Config, *Options, error) { return parse(rawURL, o) }

func parse(rawURL string, o *Options) (*mysql.Config, *Options, error) {
	var d Options
	if o != nil {
		d = *o
	}
	u, err := url.Parse(rawURL)
	if err != nil || !strings.HasPrefix(rawURL, "mysql://") && !strings.HasPrefix(rawURL, "mariadb://") {
		return nil, nil, fmt.Errorf("%w: write mysql://USER:PASSWORD@HOST/DATABASE", ErrURL)
	}
	c := mysql.NewConfig()
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.Net, c.Addr = "tcp", u.Host
	if u.Port() == "" {
		c.Addr = net.JoinHostPort(u.Hostname(), "3306")
	}
	if c.DBName = strings.TrimPrefix(u.Path, "/"); c.DBName == "" || strings.Contains(c.DBName, "/") {
		return nil, nil, fmt.Errorf("%w: it names no database; write mysql://USER:PASSWORD@HOST/DATABASE", ErrURL)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: the text after the ? cannot be read", ErrURL)
	}
	authority := ""
	for name, values := range query {
		v := values[len(values)-1]
		switch name {
		case "prefix":
			d.Prefix = v
		case "migrate":
			if d.Migrate, err = strconv.ParseBool(v); err != nil {
				return nil, nil, fmt.Errorf("%w: migrate is %q; write true or false", ErrURL, v)
			}
		case "tls":
			if !slices.Contains([]string{"true", "false", "preferred", "skip-verify"}, v) {
				return nil, nil, fmt.Errorf("%w: tls is %q; write true, false, preferred or skip-verify", ErrURL, v)
			}
			c.TLSConfig = v
		case "tls-ca":
			authority = v
		case "socket":
			c.Net, c.Addr = "unix", v
		default:
			return nil, nil, fmt.Errorf("%w: unknown parameter %q; use prefix, migrate, tls, tls-ca or socket", ErrURL, name)
		}
	}
	if u.Hostname() == "" && c.Net == "tcp" { // an empty variable in a template, not this host
		return nil, nil, fmt.Errorf("%w: the host is missing; write mysql://USER:PASSWORD@HOST/DATABASE", ErrURL)
	}
	if authority != "" {
		pem, err := os.ReadFile(authority)
		pool := x509.NewCertPool()
		if err != nil || !pool.AppendCertsFromPEM(pem) {
			return nil, nil, fmt.Errorf("%w: tls-ca: no certificates can be read from %q", ErrURL, authority)
		}
		c.TLS = &tls.Config{RootCAs: pool, ServerName: u.Hostname()}
	}
	return c, &d, nil
}

// begin checks the server, and makes the tables with Options.Migrate.
func (s *Store) begin(ctx context.Context) error {
	meeting, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	if err := s.meet(meeting); err != nil {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return &storekit.Fault{Is: ErrUnreachable, Said: err, Cure: "it does not answer in time; check that it does not hang, and that it is a MySQL or MariaDB"}
		}
		return err
	}
	if s.options.Migrate {
		migrating, cancel := context.WithTimeout(ctx, migrateLimit)
		defer cancel()
		if err := Migrate(migrating, s.front, &s.options); err != nil {
			return err
		}
		meeting, cancel = context.WithTimeout(ctx, openLimit)
		defer cancel()
	}
	have, _, err := Version(meeting, s.front, &s.options)
	switch {
	case err != nil:
		return err
	case have > version:
		return tooNew(have)
	case have < version:
		return &storekit.Fault{
			Is:   ErrNotMigrated,
			Said: fmt.Errorf("the tables %s_… have version %d, this program needs %d", s.names.prefix, have, version),
			Cure: migrateCure,
		}
	}
	// This call finds out whether the tables exist, and the user may read them.
	if err := storekit.Probe(meeting, s); err != nil || s.options.ReadOnly {
		return err
	}
	return s.requireRights(meeting)
}

// meet finds out what the server is, and checks its version.
func (s *Store) meet(ctx context.Context) error {
	if err := use(ctx, s.front, func(c *sql.Conn) error {
		return c.Raw(func(conn any) (err error) {
			s.met, err = identify(ctx, conn)
			return err
		})
	}); err != nil {
		return err
	}
	if err := refuse(s.met); err != nil {
		return err
	}
	var version string
	ask := s.script()
	// In lower case the namer would take it for the name of a table.
	ask.raw("SELECT VERSION(),@@MAX_ALLOWED_PACKET").asks(func(r *reading) {
		var n int64
		r.scan(&version, &n)
		s.packet = int(n)
		s.server.MaxBytes = min(maxBytes, s.packet/4)
	})
	if err := ask.on(ctx, s.front); err != nil {
		return err
	}
	if tooOld(version) {
		return &storekit.Fault{
			Is: ErrUnsupported, Said: fmt.Errorf("its version is %s", version),
			Cure: "use MySQL 8.0 or newer, or MariaDB 10.6 or newer",
		}
	}
	return nil
}

// identify asks a server what it is.
func identify(ctx context.Context, conn any) (*product.Met, error) {
	return product.MySQL.Ask(func(question string, add func(name, text string)) error {
		s := &script{text: []byte(question)} // no names of tables begin with its @
		err := s.asks(func(r *reading) {
			name, text := question, ""
			if len(r.row) > 1 {
				r.scan(&name)
			}
			r.scan(&text)
			add(name, text)
		}).runOn(ctx, conn)
		if code(err) != 0 { // the server refuses the question
			return nil
		}
		return err
	})
}

// refuse returns an ErrUnsupported if the store does not work with what the server is.
func refuse(met *product.Met) error {
	p := met.Refusing(product.OfStore)
	if p == nil {
		return nil
	}
	return &storekit.Fault{Is: ErrUnsupported, Said: errors.New(p.Refusal()), Cure: p.Remedy()}
}

// tooOld reads "8.0.36" or "10.11.6-MariaDB-0+deb12u1".
func tooOld(version string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(strings.TrimPrefix(version, "5.5.5-"), "%d.%d", &major, &minor); err != nil {
		return false
	}
	if strings.Contains(version, "MariaDB") {
		return major < 10 || major == 10 && minor < 6
	}
	return major < 8
}
