package mysqlstore

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestCharsets: whatever character set the application's connections or the server
// have, what is kept is what was given, and no part of it is SQL. In some of them the
// second byte of a character may be a backslash, which then escapes nothing.
func TestCharsets(t *testing.T) {
	t.Parallel()
	plain := testkit.Own()
	odd().Query("CREATE USER " + plain + "@'127.0.0.1' IDENTIFIED BY 'secret'; GRANT ALL ON app.* TO " + plain + "@'127.0.0.1'")
	for name, test := range map[string]struct {
		server func() *servertest.MariaDBServer
		user   string
		set    func(c *mysql.Config) error
	}{
		"as it is":     {mariadb, "", func(*mysql.Config) error { return nil }},
		"charset":      {mariadb, "", func(c *mysql.Config) error { return c.Apply(mysql.Charset("gbk", "")) }},
		"both":         {mariadb, "", func(c *mysql.Config) error { return c.Apply(mysql.Charset("sjis", "sjis_bin")) }},
		"collation":    {mariadb, "", func(c *mysql.Config) error { c.Collation = "gbk_chinese_ci"; return nil }},
		"MySQL":        {servers["MySQL"], "", func(c *mysql.Config) error { return c.Apply(mysql.Charset("gbk", "")) }},
		"the server's": {odd, plain + ":secret", func(*mysql.Config) error { return nil }},
	} {
		if test.server == nil {
			continue
		}
		prefix := testkit.Own()
		open(t, test.server().URL(), &Options{Prefix: prefix}) // makes the tables
		config, _, err := parse(test.server().URL(), nil)
		testkit.Must(t, err)
		if test.user != "" {
			config.User, config.Passwd, _ = strings.Cut(test.user, ":")
		}
		testkit.Must(t, test.set(config))
		s, err := New(t.Context(), config, &Options{Prefix: prefix})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		t.Cleanup(func() { testkit.Check(t, s.Close()) })
		token, k := store.NewToken(), store.Key{Name: "k"}
		claims := []store.Claim{{Key: k, Token: token, TTL: time.Minute, Permits: 1, Weight: 1, MaxAge: time.Hour}}
		answers := make([]store.Answer, 1)
		if err := s.Claim(t.Context(), claims, answers); err != nil || answers[0].State != store.Granted {
			t.Fatalf("%s: %v, %+v", name, err, answers[0])
		}
		data := []byte("\xbf',1); DELETE FROM " + prefix + "_key; -- \xbf\\\x81'\x00\xff\"\x1a\r\n?")
		errs := make([]error, 1)
		err = s.Settle(t.Context(), []store.Settlement{{Key: k, Token: token, Outcome: store.Keep, Data: data, Retention: time.Hour}}, errs)
		if err != nil || errs[0] != nil {
			t.Errorf("%s: %v, %v", name, err, errs[0])
			continue
		}
		claims[0].Token = store.NewToken()
		if err := s.Claim(t.Context(), claims, answers); err != nil || answers[0].State != store.Done || !bytes.Equal(answers[0].Record.Data, data) {
			t.Errorf("%s: %v, %+v; want %q", name, err, answers[0], data)
		}
	}
}
