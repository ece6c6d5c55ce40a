// Package app connects the parts of the dispatcher, and reads its settings. Serve runs the dispatcher on real servers, DevServer on embedded
// ones. Settings and the files that they name are read only at the start.
//
// Every replica runs all passes (App.newPasses), at its start and then at their intervals. No replica leads. If an effect must happen only once
// in a period, the ledger must give the period to one replica, as it does for CountIdleSlots of package upkeep.
package app
