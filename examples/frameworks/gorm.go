package frameworks

import (
	"fmt"
	"io"
	"net/http"

	"gorm.io/gorm"

	"github.com/dibs-go/dibs/stores/pgstore"
)

// Charge is a row of the table charges.
type Charge struct {
	ID     int64
	Amount string
}

// GORM returns a handler that books a charge by GORM, in the transaction of the request.
// The middleware's Transactor is store.SQLTransactions(sqlDB, nil).
func GORM(db *gorm.DB) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		amount, err := io.ReadAll(r.Body)
		tx, ok := pgstore.SQLTx(r.Context())
		if err != nil || !ok {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		session := db.Session(&gorm.Session{NewDB: true, Context: r.Context()})
		session.Statement.ConnPool = tx // all that the session does is in the transaction
		charge := Charge{Amount: string(amount)}
		if err := session.Create(&charge).Error; err != nil {
			w.WriteHeader(http.StatusUnprocessableEntity) // rolled back
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "charge ", charge.ID)
	}
}
