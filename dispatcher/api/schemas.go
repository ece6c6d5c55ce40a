package api

import (
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/operators"
)

// newSchemas are the types of the document. Package operators knows nothing of
// how it describes them.
func newSchemas() huma.Registry {
	schemas := huma.NewMapRegistry("#/components/schemas/", schemaName)
	schemas.RegisterTypeAlias(reflect.TypeFor[operators.Time](), reflect.TypeFor[time.Time]())
	describeChange[int](schemas)
	describeChange[int64](schemas)
	describeChange[bool](schemas)
	describeChange[string](schemas)
	describeChange[time.Time](schemas)
	describeChange[map[string]*string](schemas)
	describeChange[[]operators.Window](schemas)
	describeChange[[]operators.Policy](schemas)
	return schemas
}

// describeChange describes a field of a change as its value.
func describeChange[T any](schemas huma.Registry) {
	schemas.RegisterTypeAlias(reflect.TypeFor[operators.Change[T]](), reflect.TypeFor[T]())
}

// schemaName keeps the names that the document of v1 has.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.PkgPath() != reflect.TypeFor[operators.Pool]().PkgPath() {
		return name
	}
	switch name {
	case "Pool", "Slots", "Slot", "Window", "Batch", "Abort", "Task", "Grant", "Attempt", "Bulk", "Why", "Reason", "Device", "Profile", "Token", "Event":
		return name + "Body"
	}
	if old, ok := map[string]string{
		"NewBatch": "BatchPost", "NewTask": "BatchTask", "NewDevice": "DevicePost", "NewToken": "OperatorTokenPost",
		"Rotation": "TokenPost", "Release": "ForcePost", "PauseReason": "Reason",
	}[name]; ok {
		return old
	}
	return name
}
