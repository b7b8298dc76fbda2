package mysqlstore

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// answers are what a product says for its signs, where a sign is a part of it, or any text.
var answers = map[product.Sign]string{
	{Asked: "version", Says: "MariaDB"}:                "10.11.6-MariaDB-0+deb12u1",
	{Asked: "version", Says: "TiDB"}:                   "8.0.11-TiDB-v8.5.6",
	{Asked: "version", Says: "-Vitess"}:                "8.0.40-Vitess",
	{Asked: "version", Says: "-vitess"}:                "8.0.23-vitess",
	{Asked: "version_comment", Says: "MySQL"}:          "MySQL Community Server - GPL",
	{Asked: "version_comment", Says: "Percona Server"}: "Percona Server (GPL), Release 28, Revision 47601f19",
	{Asked: "aurora_version"}:                          "3.05.2",
	{Asked: "memsql_version"}:                          "8.9.10",
}

// TestProducts: a product that only looks like MySQL is refused by its name before a key is taken,
// and Check names one that is not tested. Behind each of them is a MariaDB, which answers all but
// the questions about the product.
func TestProducts(t *testing.T) {
	t.Parallel()
	for _, p := range product.MySQL.Products {
		for _, sign := range p.Signs {
			t.Run(p.Name+", "+sign.Asked+sign.Says, func(t *testing.T) {
				t.Parallel()
				says := map[string]string{"version": "8.4.3", "version_comment": "MySQL Community Server - GPL"}
				says[sign.Asked] = sign.Says
				if text, ok := answers[sign]; ok {
					says[sign.Asked] = text
				}
				o := &Options{Prefix: testkit.Own()}
				url := disguise(t, says)
				sqltest.Product(t, &p, ErrUnsupported,
					func() (*Store, error) { return Open(t.Context(), url, &Options{Prefix: o.Prefix, Migrate: true}) }, func() *Store { return open(t, url, o) })
				if rows := mariadb().Query("SHOW TABLES LIKE '" + o.Prefix + "%'"); p.Store == product.Refused && len(rows) > 0 {
					t.Errorf("tables were made: %v", rows)
				}
			})
		}
	}
}

// TestProductWithoutVariables: a product that refuses to set up a session is refused by its name, too.
func TestProductWithoutVariables(t *testing.T) {
	t.Parallel()
	says := map[string]string{"version": "5.7.32", "memsql_version": "8.9.10"}
	url := disguise(t, says, setUp, "SET SESSION no_such_variable=1")
	if s, err := Open(t.Context(), url, nil); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "SingleStore") {
		t.Errorf("Open: %v, %v", s, err)
	}
}

// TestUnknownProduct: a product that no table has runs, and Check says that nothing is known of it.
func TestUnknownProduct(t *testing.T) {
	t.Parallel()
	for want, says := range map[string]map[string]string{
		`"8.0.33-shiny", which dibs does not know`: {"version": "8.0.33-shiny", "version_comment": "ShinyDB"},
		"does not tell this user what it is":       nil,
	} {
		sqltest.FindsProduct(t, open(t, disguise(t, says), &Options{Prefix: testkit.Own()}), want, store.SeverityUnchecked)
	}
}

// disguise returns a URL of the server. A proxy in between asks it for the texts in says, by their
// names, in place of what is asked about the product. nil says that the questions are refused.
// changed are further statements, each with what replaces it.
func disguise(t *testing.T, says map[string]string, changed ...string) string {
	t.Helper()
	answer := slices.Repeat([]string{"SELECT nothing_of_this_name()"}, len(product.MySQL.Questions))
	if says != nil {
		var rows []string
		for name, text := range says {
			if name != product.MySQL.Questions[1] {
				rows = append(rows, fmt.Sprintf("SELECT '%s','%s'", name, text))
			}
		}
		all := strings.Join(rows, " UNION ALL ")
		answer = []string{all, "SELECT '" + says[product.MySQL.Questions[1]] + "'", all}
	}
	for i, question := range product.MySQL.Questions {
		changed = append(changed, question, answer[i])
	}
	instead := strings.NewReplacer(changed...)
	return mariadb().URLAt(testkit.Serve(t, func(_ int, c *net.TCPConn) { relay(c, instead) }))
}

// relay carries a connection to the server, whose packets have a length of 3 bytes and a number. A
// query is the first of a command, and begins with 3.
func relay(client net.Conn, instead *strings.Replacer) {
	server, err := net.Dial("tcp", mariadb().Addr())
	if err != nil {
		return
	}
	var back sync.WaitGroup
	defer back.Wait()
	defer server.Close()
	back.Go(func() { _, _ = io.Copy(client, server); client.Close() })
	for from := bufio.NewReader(client); ; {
		var head [4]byte
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return
		}
		packet := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
		if _, err := io.ReadFull(from, packet); err != nil {
			return
		}
		if text, ok := bytes.CutPrefix(packet, []byte{3}); ok && head[3] == 0 {
			packet = append([]byte{3}, instead.Replace(string(text))...)
		}
		whole := binary.LittleEndian.AppendUint32(nil, uint32(len(packet))|uint32(head[3])<<24)
		if _, err := server.Write(append(whole, packet...)); err != nil {
			return
		}
	}
}
