mod plant;
mod property;
mod scenarios;
