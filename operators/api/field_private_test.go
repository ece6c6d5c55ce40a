package api

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/operators"
)

// A field that is added to NewBatch must be in the schema with its rules and its default. A merge patch must distinguish an absent field from
// null. TestAFieldOfABatchIsAFlag checks the flag of the field.
func TestAFieldOfABatchIsInTheSchemaAndThePatch(t *testing.T) {
	t.Parallel()
	owned := reflect.StructOf(append(slices.Collect(reflect.TypeFor[operators.NewBatch]().Fields()), reflect.StructField{
		Name: "Owner", Type: reflect.TypeFor[string](), Tag: `json:"owner,omitempty" maxLength:"9" default:"nobody" doc:"Who owns it"`,
	}))
	schema := huma.SchemaFromType(newSchemas(), owned)
	owner := schema.Properties["owner"]
	if owner == nil || owner.Type != "string" || *owner.MaxLength != 9 || owner.Default != "nobody" || owner.Description != "Who owns it" || slices.Contains(schema.Required, "owner") {
		t.Errorf("the schema of the field is %+v", owner)
	}
	var patch struct {
		operators.BatchPatch

		Owner operators.Change[string] `json:"owner,omitzero" maxLength:"9"`
	}
	if property := huma.SchemaFromType(newSchemas(), reflect.TypeOf(patch)).Properties["owner"]; property == nil || property.Type != "string" {
		t.Errorf("the schema of the change is %+v", property)
	}
	for text, want := range map[string]string{`{}`: "as it was", `{"owner":null}`: "nobody", `{"owner":"me"}`: "me"} {
		stored := "as it was"
		patch.Owner = operators.Change[string]{}
		must.Succeed(t, json.Unmarshal([]byte(text), &patch))
		if applyChange(patch.Owner, &stored, "nobody"); stored != want {
			t.Errorf("%s: %s, want %s", text, stored, want)
		}
	}
}
