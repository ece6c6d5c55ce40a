package web

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/operators"
)

// expectFields checks that each of the fields exists in the objects of the API that the forms send.
func expectFields[T any](t *testing.T, fields formFields[T], objects ...any) {
	t.Helper()
	for _, field := range fields {
		for _, object := range objects {
			strict := json.NewDecoder(strings.NewReader(fmt.Sprintf(`{%q: null}`, field.name)))
			strict.DisallowUnknownFields()
			if err := strict.Decode(object); err != nil {
				t.Errorf("%s of %T: %v", field.input, object, err)
			}
		}
	}
}

func TestFormFieldsAreFieldsOfTheAPI(t *testing.T) {
	t.Parallel()
	expectFields(t, poolFields(), &operators.PoolSettings{}, &operators.PoolPatch{})
	expectFields(t, batchChangeFields(), &operators.BatchPatch{})
	expectFields(t, newBatchFields(), &operators.NewBatch{})
}
