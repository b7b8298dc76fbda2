// Package product knows which products speak the protocols of PostgreSQL, MySQL and Redis: by what
// a server tells its product, and whether dibs works with it. docs/reference/databases.md has its tables.
package product

import (
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/store"
)

// Verdict says whether a part of dibs works with a product.
type Verdict int

const (
	// Tested says that the tests of dibs run on the product.
	Tested Verdict = iota
	// Untested says that nothing in the vendor's documentation is against it, and that the tests do
	// not run on it.
	Untested
	// Refused says that what dibs needs is missing, or does not do what it does elsewhere.
	Refused
)

// String returns the word of docs/reference/databases.md.
func (v Verdict) String() string { return [...]string{"tested", "not tested", "refused"}[v] }

// Product is a product, by the vendor's name.
type Product struct {
	Name  string
	Signs []Sign  // each of them is enough
	Store Verdict // of the store
	Locks Verdict // of the advisory or named locks of sqllock
	// Why is the reason, and Cure what to do. Both are clauses that begin in lower case. They are
	// "" of a product that is tested.
	Why, Cure string
	Source    string // the vendor's page, or for a product that is tested where to get it
}

// Sign is what a server of a product says.
type Sign struct {
	Asked string // the name of a row of the answer to a question
	Says  string // a part of what the server says there
}

// Protocol is the products that speak a protocol.
type Protocol struct {
	Products []Product
	// Questions are the statements by which a client asks for the signs. They return rows of a name
	// and a text. If there is one column, it is the text, and the name is the question.
	Questions []string
}

// Met are the products that a server is. A proxy can be one of them.
type Met struct {
	Products []*Product
	Said     string // by which the server calls itself
}

// Ask asks a server what it is. Its argument carries out a question and calls add with each row. It
// returns an error if the server does not answer, and nil if the server refuses the question.
func (p *Protocol) Ask(ask func(question string, add func(name, text string)) error) (*Met, error) {
	said := map[string]string{}
	for _, question := range p.Questions {
		if err := ask(question, func(name, text string) { said[strings.ToLower(name)] = text }); err != nil {
			return nil, err
		}
	}
	return p.Meet(said), nil
}

// Meet returns the products that a server is, by what it has said under each name.
func (p *Protocol) Meet(said map[string]string) *Met {
	m := &Met{}
	for i := range p.Products {
		for _, s := range p.Products[i].Signs {
			if text, ok := said[s.Asked]; ok && strings.Contains(text, s.Says) {
				m.Products = append(m.Products, &p.Products[i])
				break
			}
		}
	}
	for _, name := range []string{"version()", "version", "redis_version"} {
		if text, ok := said[name]; ok {
			m.Said = text
		}
	}
	return m
}

// OfStore and OfLocks return the verdicts on the parts of dibs.
func OfStore(p *Product) Verdict { return p.Store }

// OfLocks is beside OfStore.
func OfLocks(p *Product) Verdict { return p.Locks }

// Refusing returns the product with which a part of dibs does not work; nil if there is none.
func (m *Met) Refusing(part func(*Product) Verdict) *Product {
	for _, p := range m.Products {
		if part(p) == Refused {
			return p
		}
	}
	return nil
}

// Refusal returns the text of an error that refuses the product.
func (p *Product) Refusal() string { return "it is " + p.Name + ": " + p.Why }

// page is where all products are.
const page = "docs/reference/databases.md"

// Remedy returns what to do about the product, and where to read more.
func (p *Product) Remedy() string { return p.Cure + "; see " + page + " and " + p.Source }

// Findings returns the findings about the products, which have the name "product".
func (m *Met) Findings() (found []store.Finding) {
	for _, p := range m.Products {
		severity, what := store.SeverityAdvice, "The tests of dibs do not run on it."
		switch p.Store {
		case Tested:
			continue
		case Refused:
			severity, what = store.SeverityDangerous, "Open refuses it."
		}
		found = append(found, store.Finding{
			Name: "product", Severity: severity,
			What: fmt.Sprintf("The server is %s: %s. %s", p.Name, p.Why, what),
			Cure: sentence(p.Remedy()),
		})
	}
	if len(m.Products) > 0 {
		return found
	}
	said := "does not tell this user what it is"
	if m.Said != "" {
		said = fmt.Sprintf("calls itself %q, which dibs does not know", m.Said)
	}
	return []store.Finding{{
		Name: "product", Severity: store.SeverityUnchecked,
		What: "The server " + said + ". It answers as the store wants, and no more is known of it.",
		Cure: "Look for what it is in " + page + ", and try dibs-prove torture on a server of its kind.",
	}}
}

// sentence makes a sentence of a clause.
func sentence(clause string) string { return strings.ToUpper(clause[:1]) + clause[1:] + "." }
