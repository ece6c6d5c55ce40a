package main

import (
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/operators"
)

// A field that is added to NewBatch becomes a flag with its help, its completion and its place in the request.
func TestAFieldOfABatchIsAFlag(t *testing.T) {
	t.Parallel()
	owned := reflect.StructOf(append(slices.Collect(reflect.TypeFor[operators.NewBatch]().Fields()), reflect.StructField{
		Name: "OwnerTeam", Type: reflect.TypeFor[string](), Tag: `json:"owner_team,omitempty" enum:"red,blue" flag:"who owns it"`,
	}))
	command := &cobra.Command{}
	fields := addFieldFlags(command, reflect.New(owned).Elem().Interface())
	if help := command.Flags().Lookup("owner-team").Usage; help != "who owns it" {
		t.Errorf("the help is %q", help)
	}
	complete, _ := command.GetFlagCompletionFunc("owner-team")
	if values, _ := complete(command, nil, ""); !slices.Equal(values, []string{"red", "blue"}) {
		t.Errorf("the completion is %q", values)
	}
	must.Succeed(t, command.ParseFlags([]string{"--owner-team", "blue", "--lease", "5m"}))
	body, err := requestBody(fields)
	if diff := cmp.Diff(map[string]any{"owner_team": "blue", "lease_ms": int64(300_000)}, body); diff != "" || err != nil {
		t.Error(diff, err)
	}
}
